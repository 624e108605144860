// Steps shared by threads: every part once and in order, whatever threads there are and however late they come.
#pragma once

int more_than_cores();
void check_parallel();
// Waits until this is the only thread of the process, where that can be seen, but not for ever.
void wait_for_helpers();
