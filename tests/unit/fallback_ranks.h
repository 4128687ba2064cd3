// What the tests of host/fallback share: ranks as threads of this process, joined by a real mesh over loopback.
#pragma once

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host/fallback/engine.h"
#include "host/fallback/mesh.h"

namespace gatun {

inline TimeNs soon() {
  return now_ns() + 20 * kSecond;
}

inline size_t entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}
inline size_t descriptors() {
  return entries("/proc/self/fd");
}
// A sanitizer starts a thread of its own with the first, which no test is to take for one that was left behind.
inline const bool first_thread_is_over = [] {
  std::thread([] {}).join();
  return true;
}();
inline size_t threads() {
  return entries("/proc/self/task");
}

// f(rank) on a thread for each rank; what it returns, by rank.
template <typename F>
auto on_ranks(uint32_t ranks, F&& f) {
  std::vector<decltype(f(0u))> results(ranks);
  std::vector<std::thread> running;
  for (uint32_t r = 0; r < ranks; ++r) running.emplace_back([&, r] { results[r] = f(r); });
  for (auto& thread : running) thread.join();
  return results;
}

inline void require_ok(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) {
    INFO(status.message());
    REQUIRE(status.ok());
  }
}

struct Listeners {
  std::vector<std::unique_ptr<MeshListener>> listeners;
  std::vector<MeshCard> cards;

  explicit Listeners(uint32_t ranks) {
    for (uint32_t r = 0; r < ranks; ++r) {
      auto listener = MeshListener::open("127.0.0.1:1");
      REQUIRE(listener.ok());
      cards.push_back(listener.value()->card());
      listeners.push_back(std::move(listener.value()));
    }
  }
};

class Group {
 public:
  explicit Group(uint32_t ranks) : Group(Listeners(ranks)) {}
  explicit Group(Listeners set) : meshes_(set.cards.size()) {
    require_ok(on_ranks(ranks(), [&](uint32_t r) {
      auto mesh = Mesh::connect(std::move(set.listeners[r]), r, set.cards, soon());
      if (mesh.ok()) meshes_[r] = std::move(mesh.value());
      return mesh.status();
    }));
  }
  uint32_t ranks() const { return static_cast<uint32_t>(meshes_.size()); }
  Mesh& operator[](uint32_t rank) { return *meshes_[rank]; }
  void close(uint32_t rank) { meshes_[rank].reset(); }

 private:
  std::vector<std::unique_ptr<Mesh>> meshes_;
};

// Keeps what it hears.
class Ears : public Mesh::Events {
 public:
  void on_mesh_message(uint32_t rank, std::span<const std::byte> message) override {
    std::lock_guard lock(mutex_);
    messages_.push_back({rank, std::string(reinterpret_cast<const char*>(message.data()), message.size())});
    changed_.notify_all();
  }
  void on_mesh_end(uint32_t rank, const std::string& why) override {
    std::lock_guard lock(mutex_);
    ends_.push_back({rank, why});
    changed_.notify_all();
  }
  using Heard = std::vector<std::pair<uint32_t, std::string>>;
  Heard messages(size_t count) { return wait(messages_, count); }
  Heard ends(size_t count) { return wait(ends_, count); }

 private:
  Heard wait(Heard& heard, size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return heard.size() >= count; });
    return heard;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  Heard messages_, ends_;
};

inline std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

}  // namespace gatun
