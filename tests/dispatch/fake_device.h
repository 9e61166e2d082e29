// A device of the test's own, of type cuda: its memory is apart from the host's, and what is queued
// on a stream happens when the test says so.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "contract/backend.h"

namespace fovea::test {

class FakeDevice {
 public:
  using Work = std::function<Status()>;

  int devices = 1;            ///< how many there are
  std::set<void*> capturing;  ///< streams that record a graph
  std::set<void*> blocks;     ///< memory that is allocated
  int allocations = 0;
  void* merged_on = nullptr;  ///< stream of the last merge

  void queue(void* stream, Work work);
  /// Lets all that was queued on the stream happen.
  void work(void* stream);
  /// Finishes what is queued and forgets errors; memory stays.
  void reset();

  Result<void*> allocate(std::size_t bytes);
  void free(void* data);
  Status synchronize(void* stream);
  void* record(void* stream, void* mark);
  Result<bool> finished(void* mark);
  [[nodiscard]] std::size_t marks() const { return marks_.size(); }

 private:
  struct Stream {
    std::deque<Work> waiting;
    std::uint64_t queued = 0, done = 0;
    Status error;
  };
  struct Mark {
    void* stream;
    std::uint64_t after;
  };
  std::map<void*, Stream> streams_;
  std::map<std::uintptr_t, Mark> marks_;
  std::uintptr_t next_mark_ = 1;
};

FakeDevice& fake_device();
extern const Backend fake_backend;

}  // namespace fovea::test
