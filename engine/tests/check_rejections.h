// Arrays and shapes that are no model are rejected with one line.
#pragma once
#include "random_model.h"

// Arrays of the wrong size, missing, repeated or unknown.
void check_rejected_arrays(const RandomModel& random);

// A valid encoder–decoder with one field changed to an impossible value.
void check_rejected_shapes(const RandomModel& random);
