#include "host/tools/perf/local.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>

#include "host/tools/paths.h"
#include "host/tools/perf/children.h"
#include "host/tools/perf/rank.h"

namespace gatun::perf {
namespace {

constexpr int kSwitchStartMs = 10'000;
constexpr int kGraceMs = 5'000;  // after a failure, for the other ranks to say what they saw
constexpr int kStopMs = 3'000;   // for gatund and mpirun to end in order
constexpr size_t kKeptBytes = 64 * 1024;

int64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000ll + now.tv_nsec / 1'000'000;
}

void say(const std::string& text) {
  std::fprintf(stderr, "gatun perf: %s\n", text.c_str());
}

// A program whose words we keep: gatund or mpirun.
struct Helper {
  pid_t pid = -1;
  int output = -1;
  std::string words;

  void read_words() {
    char chunk[4096];
    ssize_t got = 0;
    while (output >= 0 && (got = read(output, chunk, sizeof(chunk))) > 0) {
      words.append(chunk, static_cast<size_t>(got));
      if (words.size() > kKeptBytes) words.erase(0, words.size() - kKeptBytes);
    }
    if (output >= 0 && (got == 0 || errno != EAGAIN)) close_output();
  }
  void close_output() {
    if (output >= 0) close(output);
    output = -1;
  }
  std::string last_line() const {
    std::string text = words;
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
    const size_t line = text.rfind('\n');
    return line == std::string::npos ? text : text.substr(line + 1);
  }
};

class LocalRun {
 public:
  LocalRun(const Options& options, const std::vector<std::string>& arguments) : options_(options), arguments_(arguments) {}
  ~LocalRun();
  int run();

 private:
  bool prepare();
  bool start_switch();
  bool start_ranks();
  bool start_mpi();
  void watch();
  void on_exit(const Children::Exit& exit);
  void give_up();
  int conclude();
  void say_rank_errors();
  std::vector<int> outputs() const;
  void read_outputs();
  void stop_helper(Helper& helper);

  const Options& options_;
  const std::vector<std::string>& arguments_;
  Children children_;
  std::string directory_;
  std::unique_ptr<Board> board_;
  Helper switch_, mpirun_;
  std::string address_;
  std::map<pid_t, int> rank_of_;
  std::map<int, std::string> died_;  // rank, how
  int64_t kill_at_ms_ = 0;           // 0: all is well
  bool failed_ = false;
};

LocalRun::~LocalRun() {
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

bool LocalRun::prepare() {
  const double wanted = 2.0 * static_cast<double>(options_.bytes_max) * options_.aggregate * options_.local_ranks;
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (wanted > 0.8 * memory) {
    char text[160];
    std::snprintf(text, sizeof(text), "the buffers of %d ranks need %.1f GiB, this machine has %.1f: lower --maxbytes%s",
                  options_.local_ranks, wanted / (1 << 30), memory / (1 << 30),
                  options_.aggregate > 1 ? " or --agg_iters" : "");
    say(text);
    return false;
  }
  const char* base = std::getenv("TMPDIR");
  std::string name = std::string(base != nullptr ? base : "/tmp") + "/gatun-perf-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) {
    say("cannot make a directory " + name + ": " + std::strerror(errno));
    return false;
  }
  directory_ = name;
  std::string error;
  board_ = Board::create(directory_ + "/board", options_.local_ranks, &error);
  if (board_ == nullptr) say(error);
  return board_ != nullptr;
}

// gatund writes the port that it got to a file.
std::string read_port(const std::string& path) {
  std::ifstream file(path);
  std::string port;
  file >> port;
  return port;
}

bool LocalRun::start_switch() {
  if (!options_.address.empty()) {
    address_ = options_.address;
    return true;
  }
  if (options_.local_ranks == 1) return true;  // one rank needs no switch
  const std::string program = find_program("gatund");
  if (program.empty()) {
    say("cannot start a switch: gatund is neither beside " + own_path() +
        " nor in PATH; start one and name it with --address");
    return false;
  }
  std::string error;
  const std::string port_file = directory_ + "/port";
  switch_.pid = children_.spawn({program, "--port", "0", "--listen", "loopback", "--metrics", "off", "--log", "warn",
                                 "--port-file", port_file},
                                true, &switch_.output, &error);
  if (switch_.pid < 0) {
    say(error);
    return false;
  }
  const int64_t deadline_ms = now_ms() + kSwitchStartMs;
  while (address_.empty() && now_ms() < deadline_ms) {
    Children::Exit exit;
    const auto event = children_.wait(outputs(), 10, &exit);
    read_outputs();
    const std::string port = read_port(port_file);
    if (!port.empty()) address_ = "127.0.0.1:" + port;
    if (event == Children::Event::kStop) return false;
    if (event == Children::Event::kExit) {
      say("cannot start a switch: " + program + " " + exit.text() + ": " + switch_.last_line());
      return false;
    }
  }
  if (address_.empty()) {
    say("cannot start a switch: " + program + " does not serve after " + std::to_string(kSwitchStartMs / 1000) +
        " s: " + switch_.last_line());
  }
  return !address_.empty();
}

bool LocalRun::start_mpi() {
  const std::string program = find_program("mpirun");
  if (program.empty()) {
    say("--vs " + options_.peers.back() + ": mpirun is not in PATH; install Open MPI (openmpi-bin)");
    return false;
  }
  std::vector<std::string> command = {
      program, "--oversubscribe", "--bind-to", "none", "-np", std::to_string(options_.local_ranks)};
  if (geteuid() == 0) command.push_back("--allow-run-as-root");
  const auto mca = [&command](const char* key, const char* value) { command.insert(command.end(), {"--mca", key, value}); };
  mca("btl_base_warn_component_unused", "0");
  mca("mpi_warn_on_fork", "0");
  for (const std::string& peer : options_.peers) {
    if (peer == "mpi-tcp" || peer == "mpi-shm") {
      mca("pml", "ob1");
      mca("btl", peer == "mpi-tcp" ? "self,tcp" : "self,vader");
      if (peer == "mpi-tcp") mca("btl_tcp_if_include", "lo");
    }
  }
  command.insert(command.end(), {own_path(), "perf"});
  command.insert(command.end(), arguments_.begin(), arguments_.end());
  command.insert(command.end(), {"--run-dir", directory_});
  if (switch_.pid > 0) command.push_back("--own-switch");
  if (!address_.empty()) command.insert(command.end(), {"--address", address_});
  std::string error;
  mpirun_.pid = children_.spawn(command, false, &mpirun_.output, &error);
  if (mpirun_.pid < 0) say(error);
  return mpirun_.pid >= 0;
}

bool LocalRun::start_ranks() {
  const bool with_mpi = std::any_of(options_.peers.begin(), options_.peers.end(),
                                    [](const std::string& peer) { return peer.rfind("mpi", 0) == 0; });
  if (with_mpi) return start_mpi();
  for (int rank = 0; rank < options_.local_ranks; ++rank) {
    Place place;
    place.rank = rank;
    place.nranks = options_.local_ranks;
    place.address = address_;
    place.job = options_.job;
    place.own_switch = switch_.pid > 0;
    place.board = board_.get();
    place.directory = directory_;
    const pid_t pid = children_.fork_body([&] { return run_rank(options_, place); });
    if (pid < 0) {
      say(std::string("cannot start rank ") + std::to_string(rank) + ": " + std::strerror(errno));
      return false;
    }
    rank_of_[pid] = rank;
  }
  return true;
}

std::vector<int> LocalRun::outputs() const {
  std::vector<int> fds;
  for (const Helper* helper : {&switch_, &mpirun_}) {
    if (helper->output >= 0) fds.push_back(helper->output);
  }
  return fds;
}

void LocalRun::read_outputs() {
  switch_.read_words();
  mpirun_.read_words();
}

void LocalRun::give_up() {
  failed_ = true;
  if (kill_at_ms_ != 0) return;
  board_->give_up();
  kill_at_ms_ = now_ms() + kGraceMs;
}

void LocalRun::on_exit(const Children::Exit& exit) {
  if (exit.pid == switch_.pid) {
    say("gatund " + exit.text() + (switch_.words.empty() ? "" : ": " + switch_.last_line()));
    give_up();
    return;
  }
  if (exit.pid == mpirun_.pid) {
    for (int rank = 0; rank < options_.local_ranks; ++rank) {
      if (!board_->finished(rank) && !board_->failed(rank)) died_[rank] = "ended early under mpirun, which " + exit.text();
    }
    if (!died_.empty()) give_up();
    return;
  }
  const int rank = rank_of_[exit.pid];
  if (!board_->finished(rank)) {
    if (!board_->failed(rank)) died_[rank] = "process " + std::to_string(exit.pid) + " " + exit.text();
    give_up();
  }
}

void LocalRun::watch() {
  while (children_.count() > (children_.running(switch_.pid) ? 1u : 0u)) {  // gatund stays until the ranks are done
    Children::Exit exit;
    const auto event = children_.wait(outputs(), 100, &exit);
    read_outputs();
    if (event == Children::Event::kExit) on_exit(exit);
    if (event == Children::Event::kStop) return;
    for (int rank = 0; rank < options_.local_ranks && kill_at_ms_ == 0; ++rank) {
      if (board_->failed(rank)) give_up();
    }
    if (kill_at_ms_ != 0 && now_ms() > kill_at_ms_) return;
  }
}

void LocalRun::stop_helper(Helper& helper) {
  if (helper.pid < 0) return;
  children_.send(helper.pid, SIGTERM);
  const int64_t deadline_ms = now_ms() + kStopMs;
  while (children_.running(helper.pid) && now_ms() < deadline_ms) {
    Children::Exit exit;
    children_.wait(outputs(), 50, &exit);
    read_outputs();
  }
  children_.send(helper.pid, SIGKILL);
  helper.close_output();
}

// Ranks with the same sentence are named together, and a rank that only stopped because of others says nothing.
void LocalRun::say_rank_errors() {
  std::map<std::string, std::vector<int>> by_text;
  const auto say_all = [&by_text] {
    for (const auto& [text, ranks] : by_text) {
      std::string who = ranks.size() == 1 ? "rank" : "ranks";
      for (const int rank : ranks) who += (rank == ranks.front() ? " " : ", ") + std::to_string(rank);
      say(who + ": " + text);
    }
    by_text.clear();
  };
  for (const auto& [rank, text] : died_) by_text[text].push_back(rank);
  say_all();  // the cause before its effects
  for (int rank = 0; rank < options_.local_ranks; ++rank) {
    const std::string text = board_->error_of(rank);
    if (!text.empty() && text != kGivenUpText) by_text[text].push_back(rank);
  }
  say_all();
}

int LocalRun::conclude() {
  stop_helper(mpirun_);
  if (children_.stop_signal() != 0) return 128 + children_.stop_signal();
  stop_helper(switch_);
  if (!mpirun_.words.empty() && (!failed_ || !died_.empty())) std::fputs(mpirun_.words.c_str(), stderr);
  if (failed_) {
    say_rank_errors();
    return 1;
  }
  int code = 0;
  for (int rank = 0; rank < options_.local_ranks; ++rank) code = std::max(code, board_->code_of(rank));
  return code;
}

int LocalRun::run() {
  if (!prepare()) return 1;
  if (!start_switch() || !start_ranks()) return children_.stop_signal() != 0 ? 128 + children_.stop_signal() : 1;
  watch();
  return conclude();
}

}  // namespace

int run_local(const Options& options, const std::vector<std::string>& arguments) {
  return LocalRun(options, arguments).run();
}

}  // namespace gatun::perf
