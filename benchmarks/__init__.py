"""Benchmarks of Regard; none of them is in the wheel.

`peers` compares speed and memory with other libraries, `targets` checks figures of quality and speed that Regard must
reach, `startup` times the command line, `busy_machine` measures training beside other programs.
"""
