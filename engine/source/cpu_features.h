// CPU features that not all supported compilers know how to query.
#pragma once

namespace regard {

// AMX with int8 and bf16, permitted to this process by the kernel.
bool has_amx();

bool has_avx_vnni();

}  // namespace regard
