// Arrays and shapes that are no model are rejected with one line.
#pragma once
#include "random_model.h"

// Arrays of the wrong size, missing, repeated or unknown.
void check_rejected_arrays(const RandomModel& random);

// Null pointers, counts that are too small or absurd, and texts that do not fit, in every function of a translator.
void check_rejected_calls(const regard_model* model, const RandomModel& random);

void check_rejected_searches(const regard_model* model, const RandomModel& random);

// A valid encoder–decoder with one field changed to an impossible value.
void check_rejected_shapes(const RandomModel& random);
