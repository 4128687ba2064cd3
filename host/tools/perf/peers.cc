#include "host/tools/perf/peers.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "host/tools/paths.h"

namespace gatun::perf {
namespace {

constexpr int kPeerSendBytes = 4 << 20;

}  // namespace

void tune_tcp() {
  constexpr std::string_view kCubic = "cubic";
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    const int fd = std::atoi(entry->path().filename().c_str());
    char name[16] = "";
    socklen_t size = sizeof(name);
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) != 0) continue;
    const int send_bytes = kPeerSendBytes;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &send_bytes, sizeof(send_bytes)) != 0) {
      setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof(send_bytes));
    }
    if (std::string_view(name, strnlen(name, size)) == kCubic) continue;
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCubic.data(), kCubic.size());
  }
}

std::unique_ptr<Peer> Peer::load(const std::string& name, std::string* error) {
  const std::string kind = name.substr(0, name.find('-'));
  const std::string file = "libgatun_perf_" + kind + ".so";
  const std::string path = find_module(file);
  if (path.empty()) {
    *error = "--vs " + name + ": " + file + " is not beside the gatun program; it is built where " +
             (kind == "mpi" ? "Open MPI (libopenmpi-dev)" : "Gloo (libgloo-dev)") + " is installed";
    return nullptr;
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* entry = library == nullptr ? nullptr : dlsym(library, "gatun_perf_peer");
  if (entry == nullptr) {
    *error = "--vs " + name + ": " + dlerror();
    return nullptr;
  }
  const gatun_peer_api* api = reinterpret_cast<gatun_peer_entry>(entry)();
  if (api->version != GATUN_PEER_VERSION) {
    *error = "--vs " + name + ": " + path + " belongs to another version of gatun perf";
    return nullptr;
  }
  return std::unique_ptr<Peer>(new Peer(name, library, api));
}

Peer::~Peer() {
  if (started_) api_->close();  // the library stays loaded: neither Gloo nor MPI can be unloaded safely
}

std::string Peer::named(int code, const char* error) const {
  return code == 0 ? "" : name_ + ": " + error;
}

std::string Peer::early() {
  char error[GATUN_PEER_ERROR_BYTES] = "";
  if (api_->early == nullptr) return "";
  started_ = true;
  return named(api_->early(error), error);
}

std::string Peer::open(const gatun_peer_config& config) {
  char error[GATUN_PEER_ERROR_BYTES] = "";
  started_ = true;
  return named(api_->open(&config, error), error);
}

std::string Peer::prepare(int variant, void* data, size_t count, gatun_type_t type, gatun_op_t op) {
  char error[GATUN_PEER_ERROR_BYTES] = "";
  return named(api_->prepare(variant, data, count, type, op, error), error);
}

std::string Peer::run(int variant) {
  char error[GATUN_PEER_ERROR_BYTES] = "";
  return named(api_->run(variant, error), error);
}

}  // namespace gatun::perf
