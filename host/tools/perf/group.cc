#include "host/tools/perf/group.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace gatun::perf {
namespace {

// Over the library itself.
class CommGroup : public Group {
 public:
  CommGroup(gatun_comm_t comm, int rank, int size) : comm_(comm), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string barrier() override { return checked(gatun_barrier(comm_)); }
  std::string allgather(const void* mine, size_t bytes, void* all) override {
    return checked(gatun_allgather(mine, all, bytes, GATUN_U8, comm_));
  }

 private:
  std::string checked(int code) {
    if (code == GATUN_SUCCESS) return "";
    const char* text = gatun_last_error(comm_);
    return text != nullptr && *text != '\0' ? text : gatun_error_string(code);
  }

  gatun_comm_t comm_;
  int rank_, size_;
};

}  // namespace

std::string over_ranks(Group& group, double value, Spread* spread) {
  std::vector<double> values(static_cast<size_t>(group.size()));
  if (std::string error = group.allgather(&value, sizeof(value), values.data()); !error.empty()) return error;
  *spread = Spread{values[0], 0, values[0], values[0], 0};
  for (const double each : values) {
    spread->total += each;
    spread->least = std::min(spread->least, each);
    spread->most = std::max(spread->most, each);
  }
  spread->mean = spread->total / static_cast<double>(values.size());
  return "";
}

std::unique_ptr<Group> make_comm_group(gatun_comm_t comm, int rank, int size) {
  return std::make_unique<CommGroup>(comm, rank, size);
}

}  // namespace gatun::perf
