"""Every config dataclass, torch-free, so that help and checks never import torch."""
