"""Operations over depth: one folder an op, a plain PyTorch reference beside each fused kernel."""

# Hugging Face publishes a package of this name; transformers 5.0.0 parses its version and raises InvalidVersion
# where there is none.
__version__ = "0.0.0"
