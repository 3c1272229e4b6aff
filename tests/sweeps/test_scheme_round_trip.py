"""Every scheme with every example of its settings goes from a study file to run.json and back unchanged."""

import json

import pytest
import yaml

from model.residual import load_scheme, scheme_names
from sweeps.identity import run_id, run_identity
from sweeps.plan import plan_study
from sweeps.settings import RunConfig
from sweeps.study import load_study

ARMS = [(name, settings) for name in scheme_names() for settings in load_scheme(name).examples]


def as_yaml(value):
    """YAML has lists and mappings alone."""
    if isinstance(value, dict):
        return {key: as_yaml(part) for key, part in value.items()}
    return [as_yaml(part) for part in value] if isinstance(value, tuple | list) else value


@pytest.mark.parametrize(("scheme", "settings"), ARMS, ids=str)
def test_from_a_study_to_run_json_and_back(scheme, settings, tmp_path):
    content = {
        "data": {"source": "markov", "options": {"states": 8}},
        "model": {"seq_len": 16},
        "sizes": [{"name": "s", "d_model": 32, "layers": 4, "heads": 4, "tokens": 1e5}],
        "schemes": [{scheme: as_yaml(settings)}],
    }
    file = tmp_path / "one.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    (run,) = plan_study(load_study(file), tmp_path / "runs").runs
    scheme_class = load_scheme(scheme)
    asked = scheme_class.Config(**settings)
    back = json.loads(json.dumps(run.run_json()))
    config = RunConfig.model_validate(back["config"])
    assert scheme_class.Config(**config.scheme_settings) == asked
    assert run_id(run_identity(config, back["data_fingerprint"])) == back["run_id"]
    assert back["scheme_settings"].keys() | back["scheme_defaults"].keys() == scheme_class.Config.model_fields.keys()
    assert back["parameters"]["scheme"] == scheme_class.params(config.model, asked)
    assert back["reconstruction"] == scheme_class.reconstruction
