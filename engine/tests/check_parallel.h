// Steps shared by threads: every part once and in order, however many threads there are and however late they come.
#pragma once

int more_than_cores();
void check_parallel();
// Waits until this is the only thread of the process, where that can be observed, but not forever.
void wait_for_helpers();
