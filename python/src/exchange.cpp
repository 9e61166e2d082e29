#include "exchange.h"

#include <utility>
#include <vector>

namespace fovea::python {
namespace {

/// DLPackExchangeAPI. What is not called is only a place in it.
struct ExchangeApi {
  std::uint32_t major, minor;
  const ExchangeApi* older;
  void (*allocate)();
  void (*managed_from_object)();
  void (*managed_to_object)();
  int (*describe)(void* object, ExchangedTensor* to);
  void (*current_stream)();
};

constexpr std::uint32_t kMajor = 1;

/// The API of a type of PyTorch's tensors, or null.
const ExchangeApi* api_of(nb::handle type) {
  if (!nb::hasattr(type, "data_ptr")) return nullptr;
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return nullptr;
  const auto* api =
      static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api != nullptr && api->major != kMajor) api = api->older;
  return api != nullptr && api->describe != nullptr ? api : nullptr;
}

/// The same, asked once for each type. Types that were asked are kept, so that no other can take
/// the address of one; they are few. Runs under Python's lock.
const ExchangeApi* known_api_of(nb::handle type) {
  constexpr std::size_t kMaxKnown = 64;
  static std::vector<std::pair<PyObject*, const ExchangeApi*>> known;
  for (const auto& [object, api] : known)
    if (object == type.ptr()) return api;
  const ExchangeApi* api = api_of(type);
  if (known.size() < kMaxKnown) {
    Py_INCREF(type.ptr());
    known.emplace_back(type.ptr(), api);
  }
  return api;
}

}  // namespace

bool exchange(nb::handle tensor, ExchangedTensor& to) {
  const ExchangeApi* api = known_api_of(tensor.type());
  if (api == nullptr) return false;
  if (api->describe(tensor.ptr(), &to) == 0) return true;
  PyErr_Clear();
  return false;
}

}  // namespace fovea::python
