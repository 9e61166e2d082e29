// Status and Result: how Fovea reports errors without throwing.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include <fovea/export.h>

namespace fovea {

/// What kind of thing went wrong. The values are part of the C ABI.
enum class StatusCode : std::int32_t {
  ok = 0,
  invalid = 1,        ///< the caller's mistake: a shape, pointer, dtype or option
  unsupported = 2,    ///< a valid request that no kernel serves; the message carries every reason
  out_of_memory = 3,  ///< host or device memory, or a workspace that is too small
  device = 4,         ///< the device or its driver reported an error
  internal = 5,       ///< a defect of Fovea
};

/// "ok", "invalid", ...
FOVEA_API const char* name_of(StatusCode code);

/// Success, or a code with a message that says where, what, and the value found:
/// "[forward] kv_heads must divide q_heads; got q_heads=8, kv_heads=3".
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::make_shared<const std::string>(std::move(message))) {}

  [[nodiscard]] bool ok() const { return code_ == StatusCode::ok; }
  [[nodiscard]] StatusCode code() const { return code_; }
  /// Empty when ok.
  [[nodiscard]] FOVEA_API const std::string& message() const;

 private:
  StatusCode code_ = StatusCode::ok;
  std::shared_ptr<const std::string> message_;
};

/// Thrown by Result::value() and throw_if_error() only.
class FOVEA_API Error : public std::runtime_error {
 public:
  explicit Error(const Status& status)
      : std::runtime_error(status.message()), code_(status.code()) {}
  [[nodiscard]] StatusCode code() const { return code_; }

 private:
  StatusCode code_;
};

/// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] Status status() const { return ok() ? Status{} : std::get<Status>(state_); }

  /// The value; throws fovea::Error when there is none.
  [[nodiscard]] T& value() & {
    if (!ok()) throw Error(std::get<Status>(state_));
    return std::get<T>(state_);
  }
  [[nodiscard]] const T& value() const& {
    if (!ok()) throw Error(std::get<Status>(state_));
    return std::get<T>(state_);
  }
  [[nodiscard]] T value() && {
    if (!ok()) throw Error(std::get<Status>(state_));
    return std::get<T>(std::move(state_));
  }
  T* operator->() { return &std::get<T>(state_); }
  const T* operator->() const { return &std::get<T>(state_); }
  T& operator*() & { return std::get<T>(state_); }
  const T& operator*() const& { return std::get<T>(state_); }

 private:
  std::variant<T, Status> state_;
};

/// For callers who prefer exceptions: throws fovea::Error unless ok.
inline void throw_if_error(const Status& status) {
  if (!status.ok()) throw Error(status);
}

}  // namespace fovea
