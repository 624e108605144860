"""Speed and memory of Regard and other libraries, measured in one interleaved run: `python -m benchmarks.peers`.

A *benchmark* is one kind of work, such as training or translation; its *metrics* are what is measured, such as target
tokens per second. A *runner* is one library in one precision. It runs in a process of its own (the *worker*) and
measures a metric whenever it is asked to. A *round* asks every runner once. Ratios are taken between values of the same
round, so that a machine that slows down does not change them.
"""
