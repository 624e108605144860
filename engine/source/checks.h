// Checks of what a caller passes: they throw with the name of the argument or field, its value and what is allowed.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace regard {

inline void require(const char* name, const void* pointer) {
  if (!pointer) throw std::invalid_argument(std::string(name) + " must not be null");
}

inline void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    throw std::invalid_argument(std::string(name) + " must be from " + std::to_string(low) + " to " +
                                std::to_string(high) + ", not " + std::to_string(value));
}

// An array of `size` values, of which `required_size` are read.
inline void check_array(const char* name, const void* data, int64_t size, int64_t required_size) {
  if (required_size > 0) require(name, data);
  if (size < required_size)
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(size) + " values but needs " +
                                std::to_string(required_size));
}

}  // namespace regard
