// How the ranks of a run agree on times and error counts, beside the collectives that they measure.
//
// Ranks that `gatun perf -g N` started share a board: a small file, mapped by all of them and by the parent, with a barrier,
// a slot for each rank's words, and each rank's error. It is independent of the library under test, so a broken library
// cannot hide its own wrong sums. Ranks of a launcher on several hosts have no such file; they use Gatun's own collectives.
// Every wait ends: on a board when the parent gives the run up, else at the library's deadline.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "gatun/gatun.h"

namespace gatun::perf {

inline constexpr int kBoardRanksMax = 64;
inline constexpr size_t kExchangeBytesMax = 512;

inline constexpr const char* kGivenUpText = "stopped because another rank failed";

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // "" or why not. allgather moves at most kExchangeBytesMax from each rank; all receives size() times that.
  virtual std::string barrier() = 0;
  virtual std::string allgather(const void* mine, size_t bytes, void* all) = 0;
};

struct Spread {
  double first = 0, mean = 0, least = 0, most = 0, total = 0;
};
// value of every rank, in five ways; the same on all ranks.
std::string over_ranks(Group& group, double value, Spread* spread);

// The file. The parent creates it, sees who failed, and gives up for all.
class Board {
 public:
  static std::unique_ptr<Board> create(const std::string& path, int ranks, std::string* error);
  static std::unique_ptr<Board> open(const std::string& path, std::string* error);
  ~Board();

  int ranks() const;
  void give_up();  // parent: every barrier ends with an error
  bool given_up() const;
  void started(int rank);      // this process is that rank
  int pid_of(int rank) const;  // 0 before started()
  void fail(int rank, const std::string& text);
  bool failed(int rank) const;
  std::string error_of(int rank) const;  // "" if it did not fail
  void finish(int rank, int code);       // done; code 1: with wrong elements
  bool finished(int rank) const;
  int code_of(int rank) const;  // of finish()

 private:
  friend class BoardGroup;
  struct Shared;
  explicit Board(Shared* shared) : shared_(shared) {}
  Shared* shared_;
};

std::unique_ptr<Group> make_board_group(Board* board, int rank);
std::unique_ptr<Group> make_comm_group(gatun_comm_t comm, int rank, int size);

}  // namespace gatun::perf
