"""Speed, measured side by side: ours and every installed peer's, in one interleaved run.

A *bench* is one question (how many target tokens a second?), a *contestant* one answer to it: a library in one number
format. Each contestant lives in a process of its own and is asked for one *turn* after another; a *round* is one turn
of everybody. What is compared are values of the same round, so that a machine that drifts drifts for all alike.
"""
