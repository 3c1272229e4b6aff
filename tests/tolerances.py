"""Every literal tolerance of the tests, with its reason. A test file holds none."""

# sweeps/data -------------------------------------------------------------------------------------------------

# two float64 routes to one entropy rate (iteration, eigenvectors) over at most 1024 contexts
ENTROPY_RATE_REL = 1e-10
# one sum of at most 256 float64 terms in two orders
UNIGRAM_REL = 1e-12
# standard errors between a sample mean and its expectation: passed by chance once in 1.7 million; seeds are fixed too
SAMPLE_SIGMAS = 5.0
# a statistical comparison must be able to see a shift of this share of the entropy rate, or it proves nothing
SAMPLE_POWER = 0.1
# share of neighbours that ascend in a random order of 9999 windows: one half, with a standard error of 0.003
ASCENDING = 0.02
# whole files held out, at most twice the share asked for (rule of sweeps/data/corpus.py): the standard library's share
HELD_OUT = (0.05, 0.10)
