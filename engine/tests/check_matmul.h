// Matmuls against plain sums, in shapes that fill tiles and shapes that leave remainders in every direction.
#pragma once
#include <string>
#include <vector>

void check_matmul(const std::vector<std::string>& sets, int num_random_cases);
