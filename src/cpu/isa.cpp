#include "cpu/isa.h"

#include <cstdlib>
#include <cstring>
#include <fstream>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fovea::cpu {
namespace {

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && has_avx2();
}
bool has_avx512bf16() { return __builtin_cpu_supports("avx512bf16") && has_avx512(); }
/// GCC 12 knows no names of these to ask for.
bool has_amxbf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBf16) != 0 && (d & kTile) != 0 &&
         has_avx512bf16();
}
/// The state of tile registers is large; Linux gives it to those processes that ask for it.
bool ask_for_tile_registers() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
bool may_use_tile_registers() {
  static const bool granted = ask_for_tile_registers();
  return granted;
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_avx512bf16() { return false; }
bool has_amxbf16() { return false; }
bool may_use_tile_registers() { return false; }
#endif

struct Limit {
  Isa isa = Isa::amxbf16;
  bool understood = true;
};

Limit read_limit() {
  const char* value = std::getenv("FOVEA_CPU_ISA");
  if (value == nullptr || *value == '\0' || std::strcmp(value, "amxbf16") == 0) return {};
  if (std::strcmp(value, "avx512bf16") == 0) return {Isa::avx512bf16};
  if (std::strcmp(value, "avx512") == 0) return {Isa::avx512};
  if (std::strcmp(value, "avx2") == 0) return {Isa::avx2};
  if (std::strcmp(value, "portable") == 0) return {Isa::portable};
  return {Isa::portable, false};
}

const Limit& limit() {
  static const Limit value = read_limit();
  return value;
}

}  // namespace

Refusal isa_available(Isa isa) {
  if (isa == Isa::portable) return Refusal::accept();
  if (isa > limit().isa) {
    return Refusal::because(
        RefusalCode::limited_by_env,
        limit().understood ? "FOVEA_CPU_ISA"
                           : "FOVEA_CPU_ISA, which is none of portable, avx2, avx512, avx512bf16, "
                             "amxbf16");
  }
  if (isa == Isa::avx2 && !has_avx2())
    return Refusal::because(RefusalCode::instruction_set, "AVX2 with FMA and F16C");
  if (isa == Isa::avx512 && !has_avx512())
    return Refusal::because(RefusalCode::instruction_set, "AVX-512 (F, BW, DQ, VL)");
  if (isa == Isa::avx512bf16 && !has_avx512bf16())
    return Refusal::because(RefusalCode::instruction_set, "AVX512-BF16");
  if (isa == Isa::amxbf16 && !has_amxbf16())
    return Refusal::because(RefusalCode::instruction_set, "AMX (TILE, BF16) with AVX512-BF16");
  if (isa == Isa::amxbf16 && !may_use_tile_registers())
    return Refusal::because(RefusalCode::instruction_set,
                            "AMX whose tile registers the system lets this process use");
  return Refusal::accept();
}

bool pairs_are_slow() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

Isa best_isa() {
  if (isa_available(Isa::avx512).serves()) return Isa::avx512;
  if (isa_available(Isa::avx2).serves()) return Isa::avx2;
  return Isa::portable;
}

std::string model_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

std::string capabilities() {
  std::string list;
#if defined(__x86_64__)
  const auto add = [&list](bool has, const char* name) {
    if (!has) return;
    if (!list.empty()) list += ' ';
    list += name;
  };
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512dq"), "avx512dq");
  add(__builtin_cpu_supports("avx512vl"), "avx512vl");
  add(__builtin_cpu_supports("avx512bf16"), "avx512_bf16");
  add(has_amxbf16(), "amx_bf16");
#endif
  return list.empty() ? "portable" : list;
}

}  // namespace fovea::cpu
