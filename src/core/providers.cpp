#include "core/providers.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <fovea/providers.h>

#include "contract/format.h"
#include "core/proof.h"

namespace fovea {
namespace {

struct Counts {
  std::mutex mutex;
  std::map<std::string, KernelCount> by_name;
};

Counts& counts() {
  static auto* instance = new Counts;
  return *instance;
}

void count(const std::string& name, bool completed) {
  Counts& all = counts();
  const std::lock_guard lock(all.mutex);
  KernelCount& of = all.by_name[name];
  of.kernel = name;
  ++of.launched;
  ++(completed ? of.completed : of.failed);
}

std::vector<const Provider*> by_priority(std::span<const Provider> candidates) {
  std::vector<const Provider*> sorted;
  for (const Provider& candidate : candidates) sorted.push_back(&candidate);
  std::sort(sorted.begin(), sorted.end(), [](const Provider* a, const Provider* b) {
    return a->priority != b->priority ? a->priority > b->priority : a->name < b->name;
  });
  return sorted;
}

Status check_names(const std::vector<const Provider*>& sorted, const std::string& chosen) {
  std::string known;
  bool found = chosen.empty();
  for (const Provider* p : sorted) {
    for (const Provider* other : sorted)
      if (other != p && other->name == p->name)
        return {StatusCode::invalid, formatted("[providers] two are called \"{}\"", p->name)};
    found = found || p->name == chosen;
    known += (known.empty() ? "" : ", ") + p->name;
  }
  if (found) return {};
  return {StatusCode::invalid,
          formatted("[providers] unknown provider \"{}\"; known: {}", chosen, known)};
}

std::string reasons(const std::vector<PassedOver>& passed_over) {
  std::string text;
  for (const PassedOver& p : passed_over)
    text += formatted("{}{} — {}", text.empty() ? "" : "; ", p.kernel, p.reason);
  return text.empty() ? "there is none" : text;
}

}  // namespace

Result<Ranking> rank_providers(std::span<const Provider> candidates, const Choice& choice) {
  const std::vector<const Provider*> sorted = by_priority(candidates);
  const std::string& chosen = choice.kernel;
  if (Status status = check_names(sorted, chosen); !status.ok()) return status;
  Ranking ranking;
  for (const Provider* p : sorted) {
    const bool by_name = p->name == chosen;
    if (by_name && !p->refusal.empty())
      return Status(
          StatusCode::unsupported,
          formatted("[providers] \"{}\" was chosen and cannot serve: {}", chosen, p->refusal));
    if (!p->refusal.empty())
      ranking.passed_over.push_back({p->name, p->refusal});
    else if (p->explicit_only && !by_name)
      ranking.passed_over.push_back({p->name, "serves only when it is chosen by name"});
    else
      ranking.order.insert(by_name ? ranking.order.begin() : ranking.order.end(), p->name);
  }
  if (ranking.order.empty())
    return Status(StatusCode::unsupported, formatted("[providers] nobody serves this call: {}",
                                                     reasons(ranking.passed_over)));
  if (choice.strict) ranking.order.resize(1);
  return ranking;
}

void provider_ran(const Provider& provider, std::string_view description, Job* job) {
  count(provider.name, true);
  proof::provider_ran(*detail::JobState::of(job), provider, description);
}

void provider_failed(const Provider& provider, std::string_view reason, std::string_view served_by,
                     Job* job) {
  count(provider.name, false);
  proof::provider_not_used(*detail::JobState::of(job), provider, reason, served_by);
}

std::vector<KernelCount> provider_counts() {
  Counts& all = counts();
  const std::lock_guard lock(all.mutex);
  std::vector<KernelCount> list;
  for (const auto& [name, of] : all.by_name) list.push_back(of);
  return list;
}

void reset_provider_counts() {
  Counts& all = counts();
  const std::lock_guard lock(all.mutex);
  all.by_name.clear();
}

}  // namespace fovea
