"""Is the chosen policy for E and beta right? Each choice is tested against its alternative, never silent.

F test of nested fits in small samples: the fall of the sum of squares per further parameter, over the residual variance
that these parameters feel (between arms within a size where the further ones separate the arms), with that variance's
degrees of freedom. Beside it AICc = n ln(S/n) + 2k + 2k(k+1)/(n-k-1), k counting the variance. Both need a likelihood:
with Huber's loss nothing is tested, and that is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fitting.fit import CurveFit
from fitting.policy import Policy, pinned
from fitting.result import ChoiceTest
from fitting.uncertainty import Strata, influence, split_weight, strata

TEST_LEVEL = 0.05
Refit = Callable[[Policy, Policy], CurveFit]


def choice_tests(
    fit: CurveFit, budget_n: NDArray[np.intp] | None, refit: Refit, E: Policy, beta: Policy, level: float = TEST_LEVEL
) -> tuple[ChoiceTest, ...]:
    """Tests of the policies behind the joint fit `fit`. `refit(E, beta)` fits the same points under other policies;
    `budget_n` [n], in the fit's order, says which points belong to one size."""
    found = []
    for name, policy in (("beta", beta), ("E", E)):

        def under(other: Policy, name: str = name) -> CurveFit:
            return refit(E, other) if name == "beta" else refit(other, beta)

        if pinned(policy):
            found.append(_test(f"{name} = {policy:g} given", fit, under("shared"), budget_n, name, level, given=True))
        elif len(fit.names) < 2:
            continue
        elif policy == "shared":
            found.append(_test(f"separate {name}", fit, under("free"), budget_n, name, level))
        else:
            found.append(_test(f"separate {name}", under("shared"), fit, budget_n, name, level))
    return tuple(found)


def _test(
    question: str,
    small: CurveFit,
    large: CurveFit,
    budget_n: NDArray[np.intp] | None,
    name: str,
    level: float,
    given: bool = False,
) -> ChoiceTest:
    extra = small.degrees_of_freedom - large.degrees_of_freedom
    if not small.objective.likelihood:
        why = f"{question}: not tested, Huber's loss is no likelihood (--objective ls tests it)"
        return ChoiceTest(question, None, extra, 0.0, None, None, why)
    if large.degrees_of_freedom <= 0:
        count = f"{large.n} points, {large.n - large.degrees_of_freedom} parameters"
        return ChoiceTest(question, None, extra, 0.0, None, None, f"{question}: not tested, {count} leave no residual")
    spread = strata(large, budget_n)
    variance, dof = _felt(large, spread, budget_n, name, given)
    fall = max(small.total - large.total, 0.0) / extra
    # On data without noise both sums are rounding, and nothing is gained.
    nothing = small.total <= 1e-24 * small.n
    F = 0.0 if nothing else (fall / variance if variance > 0 else math.inf)
    p = float(special.fdtrc(extra, dof, F)) if math.isfinite(F) else 0.0
    criteria = _aicc(large), _aicc(small)
    rise = criteria[0] - criteria[1] if all(map(math.isfinite, criteria)) else None
    aicc = "" if rise is None else f", AICc {rise:+.2g}"
    numbers = f"p = {p:.2g} (F({extra}, {dof:.3g}) = {F:.3g}{aicc})"
    if given:
        verdict = "agrees with the data" if p > level else "is contradicted by the data"
    else:
        verdict = "gains nothing" if p > level else "fits better"
    sentence = f"{question} {verdict}: {numbers}"
    if p <= level and not given:
        sentence += f"; --{name} free gives each arm its own, and a speedup at each budget"
    elif p <= level:
        sentence += f"; --{name} shared estimates it"
    return ChoiceTest(question, F, extra, dof, p, rise, sentence)


def _felt(
    fit: CurveFit, spread: Strata, budget_n: NDArray[np.intp] | None, name: str, given: bool
) -> tuple[float, float]:
    """Residual variance that the further parameters feel, per unit of squared weight, and its degrees of freedom."""
    if not given:
        return (spread.paired, spread.paired_dof) if spread.paired_dof > 0 else (spread.common, spread.common_dof)
    column = fit.columns(fit.names[0])[1 if name == "beta" else 2]
    weight = influence(fit, with_bound=True)[column]
    parts = split_weight(weight, budget_n)
    variance, dof = spread.variance(*parts)
    return variance / max(sum(parts), 1e-300), dof


def _aicc(fit: CurveFit) -> float:
    """Corrected Akaike criterion; infinite where the correction has no degrees of freedom left."""
    k = int(fit.free_p.sum()) + 1
    if fit.n - k - 1 <= 0:
        return math.inf
    return fit.n * math.log(max(fit.total, 1e-300) / fit.n) + 2 * k + 2 * k * (k + 1) / (fit.n - k - 1)
