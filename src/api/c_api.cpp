// The C ABI over the C++ API: converts, calls, and turns everything into a code and a message.
#include <algorithm>
#include <vector>

#include "api/c_convert.h"
#include "api/guarded.h"
#include "api/report_json.h"
#include "core/status_macros.h"

using namespace fovea;

struct fovea_job {
  Job job;
};

struct fovea_plan {
  Plan plan;
};

namespace {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

fovea_status report(const Status& status) noexcept {
  if (status.ok()) return FOVEA_OK;
  try {
    last_error() = status.message();
  } catch (...) {
    return FOVEA_OUT_OF_MEMORY;
  }
  return static_cast<fovea_status>(status.code());
}

/// The code of f(), which returns a Status; lets no exception pass.
template <class F>
fovea_status code_of(F&& f) noexcept {
  try {
    return report(guarded(f));
  } catch (...) {  // no memory for the message either
    return FOVEA_OUT_OF_MEMORY;
  }
}

/// CallOptions with the pool they may point to.
struct Options {
  CallOptions call;
  ThreadPool pool;
};

Status options_of(const fovea_options* from, Options& to) {
  if (from == nullptr) return {};
  fovea_options o;
  FOVEA_RETURN_IF_ERROR(c_api::read_struct(from, "fovea_options", o));
  if (o.kernel != nullptr) to.call.plan.choice.kernel = o.kernel;
  if (o.backend != nullptr) to.call.plan.choice.backend = o.backend;
  to.call.plan.choice.strict = o.strict != 0;
  to.call.plan.deterministic = o.deterministic != 0;
  to.call.plan.self_check = o.skip_self_check == 0;
  to.call.plan.autotune = o.autotune != 0;
  to.call.plan.num_threads = o.num_threads;
  to.call.run.stream = o.stream;
  to.call.run.workspace = o.workspace;
  to.call.run.workspace_bytes = o.workspace_bytes;
  if (o.job != nullptr) to.call.run.job = &o.job->job;
  if (o.pool == nullptr) return {};
  fovea_thread_pool pool;
  FOVEA_RETURN_IF_ERROR(c_api::read_struct(o.pool, "fovea_thread_pool", pool));
  to.pool = {pool.threads, pool.self, pool.run};
  to.call.plan.pool = &to.pool;
  return {};
}

Result<ForwardArgs> convert(const fovea_forward_args* args) { return c_api::forward_args(args); }
Result<BackwardArgs> convert(const fovea_backward_args* args) { return c_api::backward_args(args); }

Status run_now(const ForwardArgs& args, const CallOptions& options) {
  return forward(args, options);
}
Status run_now(const BackwardArgs& args, const CallOptions& options) {
  return backward(args, options);
}

template <class CArgs>
fovea_status call(const CArgs* c_args, const fovea_options* c_options) {
  return code_of([&]() -> Status {
    auto args = convert(c_args);
    if (!args.ok()) return args.status();
    Options options;
    FOVEA_RETURN_IF_ERROR(options_of(c_options, options));
    return run_now(*args, options.call);
  });
}

std::size_t copy_text(const std::string& text, char* buffer, std::size_t capacity) {
  if (buffer != nullptr && capacity > 0) {
    const std::size_t length = std::min(text.size(), capacity - 1);
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return text.size() + 1;
}

template <class CArgs>
fovea_status make_plan_of(const CArgs* c_args, const fovea_options* c_options, fovea_plan** plan) {
  return code_of([&]() -> Status {
    if (plan == nullptr) return {StatusCode::invalid, "[c] plan is null"};
    *plan = nullptr;
    auto args = convert(c_args);
    if (!args.ok()) return args.status();
    Options options;
    FOVEA_RETURN_IF_ERROR(options_of(c_options, options));
    Result<Plan> made = Plan::make(*args, options.call.plan);
    if (!made.ok()) return made.status();
    *plan = new fovea_plan{*made};
    return {};
  });
}

template <class CArgs>
fovea_status run_plan_of(const fovea_plan* plan, const CArgs* c_args,
                         const fovea_options* c_options) {
  return code_of([&]() -> Status {
    if (plan == nullptr) return {StatusCode::invalid, "[c] plan is null"};
    auto args = convert(c_args);
    if (!args.ok()) return args.status();
    Options options;
    FOVEA_RETURN_IF_ERROR(options_of(c_options, options));
    return plan->plan.run(*args, options.call.run);
  });
}

template <class CArgs>
fovea_status why_not_of(const CArgs* c_args, const fovea_options* c_options, char* buffer,
                        std::size_t capacity, std::size_t* needed) {
  return code_of([&]() -> Status {
    auto args = convert(c_args);
    if (!args.ok()) return args.status();
    Options options;
    FOVEA_RETURN_IF_ERROR(options_of(c_options, options));
    auto reasons = why_not(*args, options.call.plan);
    if (!reasons.ok()) return reasons.status();
    std::string text;
    for (const PassedOver& p : *reasons)
      text += p.kernel + ": " + (p.reason.empty() ? "serves" : p.reason) + "\n";
    const std::size_t bytes = copy_text(text, buffer, capacity);
    if (needed != nullptr) *needed = bytes;
    return {};
  });
}

/// A text function that cannot fail but by memory: then it is empty.
template <class F>
std::size_t text_into(F&& f, char* buffer, std::size_t capacity) noexcept {
  try {
    return copy_text(f(), buffer, capacity);
  } catch (...) {
    if (buffer != nullptr && capacity > 0) *buffer = '\0';
    return 1;
  }
}

}  // namespace

uint32_t fovea_abi_version(void) { return FOVEA_ABI_VERSION; }
const char* fovea_version(void) { return version(); }
const char* fovea_last_error(void) { return last_error().c_str(); }

fovea_status fovea_forward(const fovea_forward_args* args, const fovea_options* options) {
  return call(args, options);
}
fovea_status fovea_backward(const fovea_backward_args* args, const fovea_options* options) {
  return call(args, options);
}

fovea_status fovea_plan_forward(const fovea_forward_args* args, const fovea_options* options,
                                fovea_plan** plan) {
  return make_plan_of(args, options, plan);
}
fovea_status fovea_plan_backward(const fovea_backward_args* args, const fovea_options* options,
                                 fovea_plan** plan) {
  return make_plan_of(args, options, plan);
}
fovea_status fovea_plan_run_forward(const fovea_plan* plan, const fovea_forward_args* args,
                                    const fovea_options* options) {
  return run_plan_of(plan, args, options);
}
fovea_status fovea_plan_run_backward(const fovea_plan* plan, const fovea_backward_args* args,
                                     const fovea_options* options) {
  return run_plan_of(plan, args, options);
}
size_t fovea_plan_workspace_bytes(const fovea_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.workspace_bytes();
}
const char* fovea_plan_kernel(const fovea_plan* plan) {
  return plan == nullptr ? "" : plan->plan.report().kernel.c_str();
}
size_t fovea_plan_report_json(const fovea_plan* plan, char* buffer, size_t capacity) {
  return text_into([&] { return plan == nullptr ? "{}" : json_of(plan->plan.report()); }, buffer,
                   capacity);
}
void fovea_plan_destroy(fovea_plan* plan) { delete plan; }

fovea_status fovea_merge_partials(const fovea_tensor* outs, const fovea_tensor* lses, size_t count,
                                  const fovea_tensor* sinks, const fovea_tensor* out,
                                  const fovea_tensor* lse) {
  return fovea_merge_partials_on_stream(outs, lses, count, sinks, out, lse, nullptr);
}

fovea_status fovea_merge_partials_on_stream(const fovea_tensor* outs, const fovea_tensor* lses,
                                            size_t count, const fovea_tensor* sinks,
                                            const fovea_tensor* out, const fovea_tensor* lse,
                                            void* stream) {
  return code_of([&]() -> Status {
    if (out == nullptr) return {StatusCode::invalid, "[merge] out is missing"};
    if (count > 0 && (outs == nullptr || lses == nullptr))
      return {StatusCode::invalid, "[merge] partial results are null"};
    std::vector<PartialResult> parts(count);
    for (std::size_t n = 0; n < count; ++n)
      parts[n] = {c_api::tensor_of(outs[n]), c_api::tensor_of(lses[n])};
    return merge_partials(
        parts, sinks == nullptr ? TensorView() : c_api::tensor_of(*sinks), c_api::tensor_of(*out),
        lse == nullptr ? MutableTensorView() : c_api::tensor_of(*lse), MergeOptions{stream});
  });
}

fovea_status fovea_job_create(const char* name, fovea_job** job) {
  return code_of([&]() -> Status {
    if (job == nullptr) return {StatusCode::invalid, "[c] job is null"};
    *job = new fovea_job{Job(name == nullptr ? "" : name)};
    return {};
  });
}
fovea_status fovea_job_flush(fovea_job* job) {
  return code_of([&]() -> Status {
    if (job == nullptr) return {StatusCode::invalid, "[c] job is null"};
    return job->job.flush();
  });
}
fovea_status fovea_flush(void) {
  return code_of([] { return flush(); });
}
void fovea_job_destroy(fovea_job* job) { delete job; }

fovea_status fovea_set_proof_level(int32_t level) {
  return code_of([&]() -> Status {
    if (level < FOVEA_PROOF_OFF || level > FOVEA_PROOF_ALL)
      return {StatusCode::invalid, "[c] proof level must be 0 to 2; got " + std::to_string(level)};
    set_proof_level(static_cast<ProofLevel>(level));
    return {};
  });
}
fovea_status fovea_set_proof_sink(void (*sink)(const char* line, void* user), void* user) {
  return code_of([&]() -> Status {
    if (sink == nullptr)
      set_proof_sink({});
    else
      set_proof_sink([=](std::string_view line) { sink(std::string(line).c_str(), user); });
    return {};
  });
}

size_t fovea_info_json(char* buffer, size_t capacity) {
  return text_into([] { return info_json(); }, buffer, capacity);
}
size_t fovea_counters_json(char* buffer, size_t capacity) {
  return text_into([] { return counters_json(); }, buffer, capacity);
}
void fovea_reset_counters(void) { reset_counters(); }

fovea_status fovea_why_not_forward(const fovea_forward_args* args, const fovea_options* options,
                                   char* buffer, size_t capacity, size_t* needed) {
  return why_not_of(args, options, buffer, capacity, needed);
}
fovea_status fovea_why_not_backward(const fovea_backward_args* args, const fovea_options* options,
                                    char* buffer, size_t capacity, size_t* needed) {
  return why_not_of(args, options, buffer, capacity, needed);
}

fovea_status fovea_run_self_checks(void) {
  return code_of([] { return run_self_checks(); });
}
void fovea_release_cached_memory(void) { release_cached_memory(); }
