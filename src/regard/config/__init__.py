"""Config dataclasses. They never import torch, so that help and checks are fast."""
