#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "host/tools/perf/group.h"

namespace gatun::perf {
namespace {

constexpr size_t kTextBytes = 1024;
constexpr int kYields = 16;              // before a waiting rank sleeps: ranks usually arrive together
constexpr long kRecheckNs = 50'000'000;  // a sleeper looks at given_up this often

void futex_wait(std::atomic<uint32_t>* word, uint32_t expected) {
  const timespec timeout = {0, kRecheckNs};
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}
void futex_wake_all(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

struct Board::Shared {
  struct Slot {
    std::atomic<int> pid;
    std::atomic<uint32_t> failed, finished;  // finished: 0, or 1 + exit code
    char text[kTextBytes];
    unsigned char words[2][kExchangeBytesMax];  // used in turns, so that one barrier per exchange is enough
  };
  uint32_t ranks;
  std::atomic<uint32_t> given_up;
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> generation;
  Slot slots[kBoardRanksMax];
};

namespace {

void* map_file(const std::string& path, int flags, size_t bytes, std::string* error) {
  const int fd = ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0600);
  void* memory = MAP_FAILED;
  if (fd >= 0 && ((flags & O_CREAT) == 0 || ftruncate(fd, static_cast<off_t>(bytes)) == 0)) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (memory == MAP_FAILED) *error = "cannot map " + path + ": " + std::strerror(errno);
  if (fd >= 0) close(fd);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

std::unique_ptr<Board> Board::create(const std::string& path, int ranks, std::string* error) {
  auto* shared = static_cast<Shared*>(map_file(path, O_CREAT | O_EXCL, sizeof(Shared), error));
  if (shared == nullptr) return nullptr;
  shared->ranks = static_cast<uint32_t>(ranks);  // the rest is zero: a fresh file
  return std::unique_ptr<Board>(new Board(shared));
}

std::unique_ptr<Board> Board::open(const std::string& path, std::string* error) {
  auto* shared = static_cast<Shared*>(map_file(path, 0, sizeof(Shared), error));
  return shared == nullptr ? nullptr : std::unique_ptr<Board>(new Board(shared));
}

Board::~Board() {
  munmap(shared_, sizeof(Shared));
}

int Board::ranks() const {
  return static_cast<int>(shared_->ranks);
}
void Board::give_up() {
  shared_->given_up.store(1);
  futex_wake_all(&shared_->generation);
}
bool Board::given_up() const {
  return shared_->given_up.load() != 0;
}
void Board::started(int rank) {
  shared_->slots[rank].pid.store(getpid());
}
int Board::pid_of(int rank) const {
  return shared_->slots[rank].pid.load();
}

void Board::fail(int rank, const std::string& text) {
  Shared::Slot& slot = shared_->slots[rank];
  if (slot.failed.load() != 0) return;  // the first error is the cause
  const size_t length = std::min(text.size(), kTextBytes - 1);
  std::memcpy(slot.text, text.data(), length);
  slot.text[length] = '\0';
  slot.failed.store(1);
}
bool Board::failed(int rank) const {
  return shared_->slots[rank].failed.load() != 0;
}
std::string Board::error_of(int rank) const {
  return failed(rank) ? shared_->slots[rank].text : "";
}
void Board::finish(int rank, int code) {
  shared_->slots[rank].finished.store(1 + static_cast<uint32_t>(code));
}
bool Board::finished(int rank) const {
  return shared_->slots[rank].finished.load() != 0;
}
int Board::code_of(int rank) const {
  return static_cast<int>(shared_->slots[rank].finished.load()) - 1;
}

class BoardGroup : public Group {
 public:
  BoardGroup(Board* board, int rank) : board_(board), shared_(board->shared_), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_->ranks); }

  std::string barrier() override {
    const uint32_t generation = shared_->generation.load();
    if (shared_->arrived.fetch_add(1) + 1 == shared_->ranks) {
      shared_->arrived.store(0);
      shared_->generation.store(generation + 1);
      futex_wake_all(&shared_->generation);
      return board_->given_up() ? kGivenUpText : "";
    }
    for (int i = 0; shared_->generation.load() == generation; ++i) {
      if (board_->given_up()) return kGivenUpText;
      if (i < kYields)
        sched_yield();
      else
        futex_wait(&shared_->generation, generation);
    }
    return "";
  }

  std::string allgather(const void* mine, size_t bytes, void* all) override {
    const uint32_t turn = turn_++ & 1;
    std::memcpy(shared_->slots[rank_].words[turn], mine, bytes);
    if (std::string error = barrier(); !error.empty()) return error;
    for (int rank = 0; rank < size(); ++rank) {
      std::memcpy(static_cast<char*>(all) + static_cast<size_t>(rank) * bytes, shared_->slots[rank].words[turn], bytes);
    }
    return "";
  }

 private:
  Board* board_;
  Board::Shared* shared_;
  int rank_;
  uint32_t turn_ = 0;
};

std::unique_ptr<Group> make_board_group(Board* board, int rank) {
  return std::make_unique<BoardGroup>(board, rank);
}

}  // namespace gatun::perf
