// Products against plain sums, in shapes that fill tiles and that leave something over in every direction.
#pragma once
#include <string>
#include <vector>

void check_products(const std::vector<std::string>& sets, int random_cases);
