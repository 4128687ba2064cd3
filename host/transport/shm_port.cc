#include "host/transport/shm_port.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace gatun {

namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint32_t kSlotsMin = 64, kSlotsMax = 1 << 20;
constexpr uint32_t kPayloadBytesMax = 1 << 24;
constexpr uint64_t kArenaBytesMax = uint64_t{1} << 40;

uint64_t page_align(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// Where everything lies in a region. Both sides compute it from the shape.
struct Layout {
  uint64_t slots[2];  // up, down
  uint64_t tx_arena;
  uint64_t cells[2];
  uint64_t end;
};

Layout layout_of(const ShmShape& shape) {
  const uint64_t ring = page_align(uint64_t{shape.slots} * sizeof(ShmSlot));
  const uint64_t cells = page_align(uint64_t{kShmCells} * shape.payload_bytes);
  Layout layout{};
  layout.slots[0] = kPageBytes;  // the first page holds the rings' control words
  layout.slots[1] = layout.slots[0] + ring;
  layout.tx_arena = layout.slots[1] + ring;
  layout.cells[0] = layout.tx_arena + page_align(shape.tx_bytes);
  layout.cells[1] = layout.cells[0] + cells;
  layout.end = layout.cells[1] + cells;
  return layout;
}

Status system_error(const std::string& what) {
  const int error = errno;
  std::string fix;
  if (error == EMFILE) fix = "; raise the limit on open files (ulimit -n)";
  if (error == ENOMEM) fix = "; lower the window, the payload size or the number of trees";
  return Status(Code::kSystem, what + ": " + std::strerror(error) + fix);
}

Result<Fd> make_memfd(const char* name, uint64_t bytes) {
  Fd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return system_error("cannot create shared memory");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error("cannot size shared memory to " + std::to_string(bytes >> 20) + " MiB");
  }
  return fd;
}

Status seal(int fd, int seals) {
  if (::fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) return {};
  if (errno == EINVAL) return Status(Code::kUnsupported, "shared memory needs Linux 5.1 or later; use transport udp");
  return system_error("cannot seal shared memory");
}

// Memory that its owner can still shrink would fault under our hands.
Status check_memory(int fd, uint64_t bytes, const char* what) {
  struct stat info {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  const bool sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
  if (sealed && ::fstat(fd, &info) == 0 && static_cast<uint64_t>(info.st_size) == bytes) return {};
  return Status(Code::kRefused, std::string("the daemon's shared memory for ") + what +
                                    " is not as announced; gatund and this library may be of different versions");
}

}  // namespace

ShmShape ShmShape::make(uint32_t trees, uint32_t window, uint32_t payload_bytes) {
  // W contributions or answers per tree, and as many again for repeats, status and probes before anybody reads them.
  const uint32_t slots = std::bit_ceil(std::max(kSlotsMin, 4 * trees * window));
  const uint64_t tx_bytes = uint64_t{trees} * window * payload_bytes;
  return {.payload_bytes = payload_bytes, .slots = slots, .tx_bytes = tx_bytes, .result_bytes = 2 * tx_bytes};
}

bool ShmShape::valid() const {
  return payload_bytes > 0 && payload_bytes <= kPayloadBytesMax && payload_bytes % 64 == 0 && std::has_single_bit(slots) &&
         slots <= kSlotsMax && tx_bytes <= kArenaBytesMax && result_bytes > 0 && result_bytes <= kArenaBytesMax;
}

uint64_t ShmShape::region_bytes() const { return layout_of(*this).end; }

ShmMap::ShmMap(ShmMap&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

ShmMap& ShmMap::operator=(ShmMap&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

ShmMap::~ShmMap() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

Result<ShmMap> ShmMap::make(int fd, uint64_t bytes, bool writable, uint64_t populate_bytes) {
  void* memory = ::mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return system_error("cannot map " + std::to_string(bytes >> 20) + " MiB of shared memory");
#if defined(MADV_POPULATE_WRITE) && defined(MADV_POPULATE_READ)
  ::madvise(memory, populate_bytes, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);  // Linux 5.14; else on first touch
#endif
  ShmMap map;
  map.bytes_ = {static_cast<std::byte*>(memory), bytes};
  return map;
}

Result<std::shared_ptr<ShmArena>> ShmArena::make(uint64_t bytes) {
  auto arena = std::make_shared<ShmArena>();
  Result<Fd> fd = make_memfd("gatun-results", bytes);
  if (!fd.ok()) return fd.status();
  Result<ShmMap> map = ShmMap::make(fd->get(), bytes, true, bytes);
  if (!map.ok()) return map.status();
  // After our own mapping: later ones cannot be writable, whatever mode the descriptor is opened with.
  if (Status status = seal(fd->get(), F_SEAL_FUTURE_WRITE); !status.ok()) return status;
  arena->fd_ = std::move(fd.value());
  arena->map_ = std::move(map.value());
  return arena;
}

Result<std::unique_ptr<ShmPort>> ShmPort::make(const ShmShape& shape, std::shared_ptr<ShmArena> results, ShmTicket* ticket) {
  GATUN_CHECK(shape.valid() && results->bytes().size() == shape.result_bytes);
  const uint64_t bytes = shape.region_bytes();
  Result<Fd> region = make_memfd("gatun-link", bytes);
  if (!region.ok()) return region.status();
  if (Status status = seal(region->get(), 0); !status.ok()) return status;
  Result<ShmMap> map = ShmMap::make(region->get(), bytes, true, layout_of(shape).cells[0]);
  if (!map.ok()) return map.status();
  Fd worker_results(::fcntl(results->fd(), F_DUPFD_CLOEXEC, 0));
  Fd up_bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Fd worker_up_bell(::fcntl(up_bell.get(), F_DUPFD_CLOEXEC, 0));
  int down_bell[2] = {-1, -1};
  if (::pipe2(down_bell, O_CLOEXEC | O_NONBLOCK) != 0) return system_error("cannot make a doorbell");
  Fd listen(down_bell[0]), ring(down_bell[1]);
  Fd keeper(::fcntl(listen.get(), F_DUPFD_CLOEXEC, 0));
  if (!worker_results.valid() || !worker_up_bell.valid() || !keeper.valid()) return system_error("cannot make a doorbell");

  std::unique_ptr<ShmPort> port(new ShmPort(shape, true, std::move(map.value())));
  port->results_ = results->bytes();
  port->results_owner_ = std::move(results);
  port->listen_bell_ = std::move(up_bell);
  port->ring_bell_ = std::move(ring);
  port->bell_keeper_ = std::move(keeper);
  port->lay_out();
  *ticket = {shape, std::move(region.value()), std::move(worker_results), std::move(worker_up_bell), std::move(listen)};
  return port;
}

Result<std::unique_ptr<ShmPort>> ShmPort::open(ShmTicket ticket) {
  const ShmShape& shape = ticket.shape;
  if (!shape.valid()) return Status(Code::kRefused, "the daemon announced shared memory of an impossible shape");
  if (Status status = check_memory(ticket.region.get(), shape.region_bytes(), "the link"); !status.ok()) return status;
  if (Status status = check_memory(ticket.results.get(), shape.result_bytes, "results"); !status.ok()) return status;
  Result<ShmMap> region = ShmMap::make(ticket.region.get(), shape.region_bytes(), true, layout_of(shape).cells[0]);
  if (!region.ok()) return region.status();
  Result<ShmMap> results = ShmMap::make(ticket.results.get(), shape.result_bytes, false, shape.result_bytes);
  if (!results.ok()) return results.status();
  std::unique_ptr<ShmPort> port(new ShmPort(shape, false, std::move(region.value())));
  port->results_map_ = std::move(results.value());
  port->results_ = port->results_map_.bytes();
  port->listen_bell_ = std::move(ticket.down_bell);
  port->ring_bell_ = std::move(ticket.up_bell);
  port->lay_out();
  return port;
}

void ShmPort::lay_out() {
  const Layout layout = layout_of(shape_);
  std::byte* base = region_.bytes().data();
  ShmRing rings[2];
  for (int i = 0; i < 2; ++i) {
    rings[i].control = reinterpret_cast<ShmRingControl*>(base) + i;
    rings[i].slots = reinterpret_cast<ShmSlot*>(base + layout.slots[i]);
    rings[i].mask = shape_.slots - 1;
    rings[i].cells = base + layout.cells[i];
    rings[i].cell_bytes = shape_.payload_bytes;
  }
  tx_arena_ = {base + layout.tx_arena, shape_.tx_bytes};
  in_ = ShmConsumer(rings[daemon_ ? 0 : 1]);
  out_ = ShmProducer(rings[daemon_ ? 1 : 0]);
}

// The daemon's bell is a pipe, whose writing end only it has: a worker can fill the pipe, but not make this write block.
// The worker's is an eventfd, which never raises SIGPIPE in the worker's process when the daemon is gone.
void ShmPort::ring_if_asleep() {
  if (!out_.must_ring()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(ring_bell_.get(), &one, daemon_ ? 1 : sizeof(one));
}

void ShmPort::drain_doorbell() {
  char bytes[256];
  [[maybe_unused]] const ssize_t got = ::read(listen_bell_.get(), bytes, sizeof(bytes));
}

ShmPlace ShmPort::place(const std::byte* payload, uint32_t bytes) const {
  if (bytes == 0) return {};
  const auto inside = [&](std::span<std::byte> arena) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(arena.data()), at = reinterpret_cast<uintptr_t>(payload);
    return at >= begin && at - begin < arena.size() && bytes <= arena.size() - (at - begin);
  };
  if (inside(tx_arena_)) return {ShmPlaceKind::kTxArena, static_cast<uint64_t>(payload - tx_arena_.data())};
  if (daemon_ && inside(results_)) return {ShmPlaceKind::kResults, static_cast<uint64_t>(payload - results_.data())};
  return {ShmPlaceKind::kCell, 0};
}

const std::byte* ShmPort::resolve(const ShmDescriptor& descriptor) const {
  const uint64_t offset = descriptor.offset;
  const uint32_t bytes = descriptor.payload_bytes;
  if (bytes > shape_.payload_bytes) return nullptr;
  const auto kind = static_cast<ShmPlaceKind>(descriptor.kind);
  if (kind == ShmPlaceKind::kCell) return in_.cell(offset);
  std::span<std::byte> arena;
  if (kind == ShmPlaceKind::kTxArena) arena = tx_arena_;
  if (kind == ShmPlaceKind::kResults && !daemon_) arena = results_;
  if (offset > arena.size() || bytes > arena.size() - offset) return nullptr;
  return arena.data() + offset;  // null for no arena
}

}  // namespace gatun
