"""Looking inside models: attribution, head ablation, head studies, hooks for foreign modules."""
