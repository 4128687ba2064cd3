#include "host/tools/perf/rank.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "host/tools/perf/bench.h"

namespace gatun::perf {
namespace {

// Everything a rank holds, so that one destructor order serves every way out: peers before the communicator.
class Rank {
 public:
  Rank(const Options& options, const Place& place) : options_(options), place_(place) {}
  ~Rank();
  int run();  // throws Failure

 private:
  void load_peers();
  void join();
  void open_peers();
  RunInfo gather_info();

  const Options& options_;
  const Place& place_;
  gatun_comm_t comm_ = nullptr;
  std::unique_ptr<Group> group_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::string made_directory_;
  bool done_ = false;
};

Rank::~Rank() {
  if (!done_) {  // nobody shall wait for this rank
    for (const auto& peer : peers_) peer->abandon();
    if (comm_ != nullptr) gatun_comm_abort(comm_);
  }
  peers_.clear();
  if (comm_ != nullptr) gatun_comm_destroy(comm_);
  std::error_code ignored;
  if (!made_directory_.empty()) std::filesystem::remove_all(made_directory_, ignored);
}

// MPI wants to start before anything else does.
void Rank::load_peers() {
  for (const std::string& name : options_.peers) {
    std::string error;
    auto peer = Peer::load(name, &error);
    require(error);
    require(peer->early());
    peers_.push_back(std::move(peer));
  }
}

void Rank::join() {
  gatun_options_t join = GATUN_OPTIONS_INIT;
  if (!place_.address.empty()) join.address = place_.address.c_str();
  if (!place_.job.empty()) join.job = place_.job.c_str();
  join.timeout_ms = options_.timeout_s * 1000ll;
  join.fallback = options_.fallback.c_str();
  const int code = gatun_comm_create(&comm_, place_.nranks, place_.rank, &join);
  if (code != GATUN_SUCCESS) {
    comm_ = nullptr;
    throw Failure{gatun_last_error(nullptr)};
  }
  group_ = place_.board != nullptr ? make_board_group(place_.board, place_.rank)
                                   : make_comm_group(comm_, place_.rank, place_.nranks);
}

void Rank::open_peers() {
  if (peers_.empty()) return;
  char path[kExchangeBytesMax] = "";
  if (!place_.directory.empty()) {
    std::snprintf(path, sizeof(path), "%s", place_.directory.c_str());
  } else if (place_.rank == 0) {
    const char* base = std::getenv("TMPDIR");
    std::snprintf(path, sizeof(path), "%s/gatun-perf-XXXXXX", base != nullptr ? base : "/tmp");
    if (mkdtemp(path) == nullptr)
      throw Failure{std::string("cannot make a directory ") + path + ": " + std::strerror(errno)};
    made_directory_ = path;
  }
  std::vector<char> paths(sizeof(path) * static_cast<size_t>(place_.nranks));
  require(group_->allgather(path, sizeof(path), paths.data()));
  for (const auto& peer : peers_) {
    const std::string directory = std::string(paths.data()) + "/" + peer->name();
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) throw Failure{"cannot make " + directory + ", which all ranks must see: " + error.message()};
    require(peer->open({place_.rank, place_.nranks, directory.c_str(), place_.board != nullptr ? "127.0.0.1" : nullptr}));
  }
}

RunInfo Rank::gather_info() {
  RunInfo info{};
  info.stats.size = sizeof(info.stats);
  gatun_comm_stats(comm_, &info.stats);
  info.launcher = place_.launcher;
  info.own_switch = place_.own_switch;
  for (const auto& peer : peers_) info.peers.push_back(peer->describe());
  if (!peers_.empty()) info.peers.push_back("Peers' TCP: cubic, send buffers of 4 MiB");
  RankInfo mine{};
  gethostname(mine.host, sizeof(mine.host) - 1);
  mine.pid = getpid();
  info.ranks.resize(static_cast<size_t>(place_.nranks));
  require(group_->allgather(&mine, sizeof(mine), info.ranks.data()));
  return info;
}

int Rank::run() {
  if (has_root(options_.collective) && options_.root >= place_.nranks) {
    throw Failure{"--root " + std::to_string(options_.root) + " is no rank of this run: it has 0 to " +
                  std::to_string(place_.nranks - 1)};
  }
  load_peers();
  join();
  open_peers();
  const RunInfo info = gather_info();
  std::unique_ptr<Report> report;
  if (place_.rank == 0) {
    report = std::make_unique<Report>(options_);
    report->begin(info);
  }
  Bench(options_, *group_, comm_, peers_, report.get()).run();
  int code = 0;
  if (report != nullptr) {
    gatun_stats_t stats{};
    stats.size = sizeof(stats);
    gatun_comm_stats(comm_, &stats);
    require(report->end(stats));
    code = report->wrong() > 0 ? 1 : 0;
  }
  require(group_->barrier());
  done_ = true;
  return code;
}

}  // namespace

int run_rank(const Options& options, const Place& place) {
  if (place.board != nullptr) place.board->started(place.rank);
  int code = 1;
  try {
    code = Rank(options, place).run();
    if (place.board != nullptr) place.board->finish(place.rank, code);
  } catch (const Failure& failure) {
    if (place.board != nullptr) {
      place.board->fail(place.rank, failure.text);
    } else {
      std::fprintf(stderr, "gatun perf: rank %d: %s\n", place.rank, failure.text.c_str());
    }
  }
  std::fflush(stdout);
  return code;
}

}  // namespace gatun::perf
