#include "core/memory.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "contract/format.h"
#include "core/status_macros.h"
#include "core/views.h"

namespace fovea {
namespace {

Status invalid(std::string message) { return {StatusCode::invalid, std::move(message)}; }

/// First and one-past-last byte address of a view with elements.
struct Extent {
  std::intptr_t begin, end;
};

Extent extent_of(const TensorView& view) {
  const std::int64_t size = size_of(view.dtype);
  std::intptr_t low = 0, high = 0;
  for (int d = 0; d < view.rank; ++d) {
    const auto n = static_cast<std::size_t>(d);
    const std::int64_t reach = (view.shape[n] - 1) * view.strides[n] * size;
    (reach < 0 ? low : high) += reach;
  }
  const auto base = reinterpret_cast<std::intptr_t>(view.data);
  return {base + low, base + high + size};
}

/// One term z * stride, z in [0, count), of a sum of byte offsets.
struct Term {
  std::int64_t stride, count;
};

/// The most terms of two views: their dimensions, and the bytes of their elements.
constexpr std::size_t kMaxTerms = std::size_t{2} * (kMaxRank + 1);

struct Terms {
  std::array<Term, kMaxTerms> list{};
  std::size_t count = 0;

  void add(Term term) { list[count++] = term; }
};

/// Whether the terms from `index` on can add up to `target`. Terms are sorted by falling stride;
/// reach[n] is the largest sum of the terms from n on.
bool reachable(const Terms& terms, const std::int64_t* reach, std::size_t index,
               std::int64_t target, int& budget) {
  if (target < 0 || target > reach[index]) return false;
  if (index == terms.count) return target == 0;
  if (--budget < 0) return false;
  const Term& term = terms.list[index];
  const std::int64_t most = std::min(term.count - 1, target / term.stride);
  for (std::int64_t z = most; z >= 0; --z) {
    const std::int64_t rest = target - z * term.stride;
    if (rest > reach[index + 1]) return false;
    if (reachable(terms, reach, index + 1, rest, budget)) return true;
  }
  return false;
}

void add_terms(const TensorView& view, Terms& terms) {
  const std::int64_t size = size_of(view.dtype);
  for (int d = 0; d < view.rank; ++d) {
    const auto n = static_cast<std::size_t>(d);
    const std::int64_t stride = std::abs(view.strides[n]) * size;
    if (view.shape[n] > 1 && stride != 0) terms.add({stride, view.shape[n]});
  }
  terms.add({1, size});
}

/// Where the number-th view of a problem lies. Nothing is cleared: there is room for many.
struct Placed {
  Extent extent;
  std::size_t number;
  bool written;
};

struct NamedView {
  TensorView view;
  const char* name = nullptr;
};

NamedView nth_view(const Problem& problem, std::size_t number) {
  NamedView found;
  std::size_t next = 0;
  visit_problem(problem, [&](const TensorView& view, const char* name, Role) {
    if (next++ == number) found = {view, name};
  });
  return found;
}

}  // namespace

std::string shape_text(const TensorView& view) {
  const auto rank = static_cast<std::size_t>(std::clamp(view.rank, 0, kMaxRank));
  return list_text({view.shape.data(), rank});
}

Status check_layout(const std::string& where, const char* name, const TensorView& view,
                    int min_rank, int max_rank) {
  if (view.rank < min_rank || view.rank > max_rank) {
    const std::string wanted = min_rank == max_rank ? formatted("{}", min_rank)
                                                    : formatted("{} to {}", min_rank, max_rank);
    return invalid(formatted(
        "[{}] {} must have {} dimensions; got {}", where, name, wanted,
        view.rank < 0 ? "a shape and strides that do not match" : formatted("{}", view.rank)));
  }
  if (size_of(view.dtype) == 0 || view.dtype > DType::fp8_e5m2)
    return invalid(
        formatted("[{}] {} has unknown dtype {}", where, name, static_cast<int>(view.dtype)));
  std::int64_t elements = size_of(view.dtype), reach = 0;
  bool overflow = false, empty = false;
  for (int d = 0; d < view.rank; ++d) {
    const auto n = static_cast<std::size_t>(d);
    if (view.shape[n] < 0)
      return invalid(
          formatted("[{}] {} has a negative size; got shape {}", where, name, shape_text(view)));
    if (view.shape[n] == 0) empty = true;
  }
  for (int d = 0; d < view.rank; ++d) {
    const auto n = static_cast<std::size_t>(d);
    std::int64_t step = 0;
    // A size of 0 counts as 1, so that the product of any of the sizes fits.
    overflow = overflow || __builtin_mul_overflow(
                               elements, std::max<std::int64_t>(view.shape[n], 1), &elements);
    if (empty || view.shape[n] == 1) continue;
    if (view.strides[n] == std::numeric_limits<std::int64_t>::min()) overflow = true;
    overflow = overflow ||
               __builtin_mul_overflow(view.shape[n] - 1, std::abs(view.strides[n]), &step) ||
               __builtin_mul_overflow(step, size_of(view.dtype), &step) ||
               __builtin_add_overflow(reach, step, &reach);
  }
  if (overflow)
    return invalid(formatted("[{}] {} is larger than 63 bits can address; got shape {}", where,
                             name, shape_text(view)));
  return {};
}

Status check_pointer(const std::string& where, const char* name, const TensorView& view) {
  if (view.elements() == 0) return {};
  if (view.data == nullptr)
    return invalid(formatted("[{}] {} is null but has shape {}", where, name, shape_text(view)));
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  const auto size = static_cast<std::uintptr_t>(size_of(view.dtype));
  if (address % size != 0)
    return invalid(formatted("[{}] {} is not aligned to its dtype {}; got address {:#x}", where,
                             name, name_of(view.dtype), address));
  return {};
}

bool overlap(const TensorView& a, const TensorView& b) {
  if (a.elements() == 0 || b.elements() == 0) return false;
  const Extent ea = extent_of(a), eb = extent_of(b);
  if (ea.end <= eb.begin || eb.end <= ea.begin) return false;
  // A byte of a (counted from its lowest) and one of b (counted from its highest, downwards) are
  // the same byte when their offsets add up to the distance of these two ends.
  Terms terms, merged;
  add_terms(a, terms);
  add_terms(b, terms);
  std::sort(terms.list.begin(), terms.list.begin() + static_cast<std::ptrdiff_t>(terms.count),
            [](const Term& x, const Term& y) { return x.stride > y.stride; });
  for (std::size_t n = 0; n < terms.count; ++n) {
    const Term& term = terms.list[n];
    if (n > 0 && terms.list[n - 1].stride == term.stride)
      merged.list[merged.count - 1].count += term.count - 1;
    else
      merged.add(term);
  }
  std::array<std::int64_t, kMaxTerms + 1> reach{};
  for (std::size_t n = merged.count; n-- > 0;)
    reach[n] = reach[n + 1] + merged.list[n].stride * (merged.list[n].count - 1);
  int budget = 20000;
  return reachable(merged, reach.data(), 0, eb.end - 1 - ea.begin, budget);
}

bool writes_each_element_once(const TensorView& view) {
  if (view.elements() == 0) return true;
  std::array<Term, kMaxRank> terms{};
  std::size_t count = 0;
  for (int d = 0; d < view.rank; ++d) {
    const auto n = static_cast<std::size_t>(d);
    if (view.shape[n] > 1) terms[count++] = {std::abs(view.strides[n]), view.shape[n]};
  }
  std::sort(terms.begin(), terms.begin() + static_cast<std::ptrdiff_t>(count),
            [](const Term& x, const Term& y) { return x.stride < y.stride; });
  std::int64_t reach = 0;
  for (std::size_t n = 0; n < count; ++n) {
    if (terms[n].stride <= reach) return false;
    reach += terms[n].stride * (terms[n].count - 1);
  }
  return true;
}

Status check_memory(const std::string& where, const Problem& problem) {
  std::array<Placed, kMaxViews> placed;
  std::size_t count = 0, number = 0;
  Status status;
  visit_problem(problem, [&](const TensorView& view, const char* name, Role role) {
    const std::size_t own = number++;
    if (!status.ok() || !view.present()) return;
    status = check_pointer(where, name, view);
    if (status.ok() && view.elements() != 0)
      placed[count++] = {extent_of(view), own, role == Role::output};
  });
  FOVEA_RETURN_IF_ERROR(status);
  for (std::size_t a = 0; a < count; ++a) {
    if (!placed[a].written) continue;
    for (std::size_t b = 0; b < count; ++b) {
      if (a == b || (placed[b].written && b < a)) continue;
      if (placed[a].extent.end <= placed[b].extent.begin ||
          placed[b].extent.end <= placed[a].extent.begin)
        continue;
      const NamedView x = nth_view(problem, placed[a].number);
      const NamedView y = nth_view(problem, placed[b].number);
      if (overlap(x.view, y.view))
        return invalid(formatted("[{}] output {} overlaps {}", where, x.name, y.name));
    }
  }
  return {};
}

}  // namespace fovea
