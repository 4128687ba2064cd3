#include "tests/system/lib_comm.h"

#include <memory>
#include <vector>

#include "host/lib/c_api.h"
#include "host/transport/lossy.h"

namespace gatun {
namespace {

// A lossy transport that owns what it wraps, and says that its device is near some cores.
class OwningLossy final : public Transport {
 public:
  OwningLossy(std::unique_ptr<Transport> inner, const LossyOptions& options, std::vector<int> cores = {})
      : inner_(std::move(inner)), cores_(std::move(cores)) {
    auto made = Lossy::make(inner_.get(), options);
    GATUN_CHECK(made.ok());
    lossy_ = std::move(made.value());
  }
  TransportCaps caps() const override {
    TransportCaps caps = lossy_->caps();
    caps.cores = cores_;
    return caps;
  }
  int receive(std::span<RxPacket> out) override { return lossy_->receive(out); }
  void release(std::span<const BufferId> buffers) override { lossy_->release(buffers); }
  int send(std::span<const TxPacket> packets) override { return lossy_->send(packets); }
  std::span<std::byte> arena(PeerId peer) override { return lossy_->arena(peer); }
  PeerId adopt(const RxPacket& packet) override { return lossy_->adopt(packet); }
  void forget(PeerId peer) override { lossy_->forget(peer); }
  bool prepare_wait() override { return lossy_->prepare_wait(); }
  int wait_fd() const override { return lossy_->wait_fd(); }
  void finish_wait() override { lossy_->finish_wait(); }
  Status health() override { return lossy_->health(); }
  TransportStats stats() const override { return lossy_->stats(); }

 private:
  std::unique_ptr<Transport> inner_;
  std::unique_ptr<Lossy> lossy_;
  std::vector<int> cores_;
};

}  // namespace

gatun_options_t c_options(const RankOptions& options) {
  gatun_options_t c = GATUN_OPTIONS_INIT;
  c.address = options.address.empty() ? nullptr : options.address.c_str();
  c.job = options.job.c_str();
  c.transport = options.transport.c_str();
  c.trees = options.trees;
  c.window = options.window;
  c.payload_bytes = options.payload_bytes;
  c.timeout_ms = options.timeout_ms;
  c.join_timeout_ms = options.join_timeout_ms;
  c.fallback = options.fallback.c_str();
  c.rendezvous = options.rendezvous.empty() ? nullptr : options.rendezvous.c_str();
  c.detect_ms = options.detect_ms;
  return c;
}

Comm::Comm(int ranks, int rank, const RankOptions& options) {
  const gatun_options_t c = c_options(options);
  if (!options.wrap) {
    code_ = gatun_comm_create(&handle_, ranks, rank, &c);
    if (code_ != 0) error_ = gatun_last_error(nullptr);
    return;
  }
  std::vector<std::string> warnings;
  std::unique_ptr<Store> store;
  Result<SettingValues> settings = load_settings(&c, &warnings, &store);
  GATUN_CHECK(settings.ok());
  Result<std::unique_ptr<Communicator>> made = Communicator::create({.settings = settings.value(),
                                                                     .rank = static_cast<uint32_t>(rank),
                                                                     .ranks = static_cast<uint32_t>(ranks),
                                                                     .wrap = options.wrap});
  code_ = static_cast<int>(made.status().code());
  error_ = made.status().message();
  if (made.ok()) handle_ = make_handle(std::move(made.value()));
}

void Comm::reset() {
  if (handle_) gatun_comm_destroy(std::exchange(handle_, nullptr));
}

gatun_stats_t Comm::stats() const {
  gatun_stats_t stats{};
  stats.size = sizeof stats;
  gatun_comm_stats(handle_, &stats);
  return stats;
}

TransportWrapper lossy(uint64_t seed, double drop, double duplicate, double hold, double corrupt) {
  const LossyRates rates{.drop = drop, .duplicate = duplicate, .hold = hold, .corrupt = corrupt};
  const LossyOptions options{.seed = seed, .send = rates, .receive = rates};
  return [options](std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    return std::make_unique<OwningLossy>(std::move(inner), options);
  };
}

TransportWrapper near_cores(const std::vector<int>& cores) {
  return [cores](std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    return std::make_unique<OwningLossy>(std::move(inner), LossyOptions{}, cores);
  };
}

std::string expect_code(int expected, int code, gatun_comm_t comm, const std::string& what) {
  if (code == expected) return "";
  return what + ": code " + std::to_string(code) + " instead of " + std::to_string(expected) + ": " + gatun_last_error(comm);
}

}  // namespace gatun
