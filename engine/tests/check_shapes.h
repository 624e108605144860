// Shapes with one field changed to an extreme value: rejected with one line, or a model that computes.
#pragma once
#include "random_model.h"

void check_extreme_shapes(const RandomModel& random);
