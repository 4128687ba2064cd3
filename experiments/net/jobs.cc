#include "experiments/net/jobs.h"

#include <algorithm>

namespace gatun::net {

Jobs::Jobs(Network& network, std::vector<JobSpec> specs, uint32_t iterations) : network_(network), iterations_(iterations) {
  for (JobSpec& spec : specs) {
    const auto job = static_cast<uint32_t>(jobs_.size());
    jobs_.push_back({.spec = std::move(spec), .first_rank = static_cast<uint32_t>(ranks_.size())});
    ranks_.resize(ranks_.size() + jobs_.back().spec.hosts.size(), {.job = job});
  }
}

void Jobs::start() {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) begin(rank);
}

void Jobs::begin(uint32_t index) {
  const Rank& rank = ranks_[index];
  Job& job = jobs_[rank.job];
  job.begun = std::max(job.begun, rank.iteration + 1);
  const TimePs from = rank.iteration == 0 ? job.spec.begins : network_.now();
  network_.at(from + job.spec.compute, EventKind::kComputed, index);
}

void Jobs::on_reduced(uint32_t index) {
  Rank& rank = ranks_[index];
  Job& job = jobs_[rank.job];
  if (job.ranks_done.size() <= rank.iteration) job.ranks_done.resize(rank.iteration + 1);
  if (++job.ranks_done[rank.iteration] == job.spec.hosts.size()) {
    job.ends.push_back(network_.now());
    iterations_done_ += job.ends.size() <= iterations_;
    jobs_done_ += job.ends.size() == iterations_;
  }
  ++rank.iteration;
  if (!stopping_ || rank.iteration < job.begun) begin(index);
}

double Jobs::progress() const {
  return static_cast<double>(iterations_done_) / static_cast<double>(jobs_.size() * iterations_);
}

}  // namespace gatun::net
