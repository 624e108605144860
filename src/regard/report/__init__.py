"""Reports about models, computed from their folders: what they contain, how fast they are, how they compare."""
