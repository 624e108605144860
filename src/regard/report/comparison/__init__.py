"""`regard compare`: models of one task, trained on the same data within the same time, in one report.

- `tasks`: what differs by task – test data, predictions, baselines, the example that is shown
- `training`: entries of `--arch` to finished runs, for every seed
- `evaluation`: the predictions of finished runs, their scores and their speed
- `report`: scores, intervals, paired tests and the conclusion in words
- `page`: table, charts, Markdown and the self-contained page

    from regard.report.comparison.compare import compare_architectures
"""
