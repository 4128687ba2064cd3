// Gloo as a peer: its ring, chunked ring, halving-doubling and (for powers of two) bcube all-reduce over TCP.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/tools/perf/peer.h"

namespace {

enum Variant { kRing, kRingChunked, kHalvingDoubling, kBcube, kVariants };
constexpr const char* kVariantNames[kVariants] = {"ring", "ring-chunked", "halving-doubling", "bcube"};

std::shared_ptr<gloo::rendezvous::Context> context;
std::function<void()> prepared[kVariants];

// Gloo throws; this boundary turns that into text.
template <typename F>
int guarded(char* error, F&& f) {
  try {
    f();
    return 0;
  } catch (const std::exception& thrown) {
    std::snprintf(error, GATUN_PEER_ERROR_BYTES, "%s", thrown.what());
  }
  return -1;
}

const char* describe() {
  static char text[64];
  std::snprintf(text, sizeof(text), "Gloo %d.%d.%d over TCP", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH);
  return text;
}

int open_peer(const gatun_peer_config* config, char* error) {
  return guarded(error, [&] {
    gloo::transport::tcp::attr attributes;
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
    if (interface != nullptr) {
      attributes.iface = interface;
    } else if (config->address != nullptr) {
      attributes.hostname = config->address;
    }
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(config->directory);
    context = std::make_shared<gloo::rendezvous::Context>(config->rank, config->nranks);
    context->connectFullMesh(store, device);
  });
}

void close_peer() {
  for (auto& run : prepared) run = nullptr;
  context.reset();
}

int variants(int nranks) {
  return (nranks & (nranks - 1)) == 0 && nranks > 1 ? kVariants : kVariants - 1;
}
const char* variant_name(int variant) {
  return kVariantNames[variant];
}

template <typename T>
const gloo::ReductionFunction<T>* in_place_function(gatun_op_t op) {
  switch (op) {
    case GATUN_PROD: return gloo::ReductionFunction<T>::product;
    case GATUN_MIN: return gloo::ReductionFunction<T>::min;
    case GATUN_MAX: return gloo::ReductionFunction<T>::max;
    default: return gloo::ReductionFunction<T>::sum;
  }
}

template <typename T>
gloo::AllreduceOptions::Func function(gatun_op_t op) {
  using Function = void (*)(void*, const void*, const void*, size_t);
  switch (op) {
    case GATUN_PROD: return static_cast<Function>(&gloo::product<T>);
    case GATUN_MIN: return static_cast<Function>(&gloo::min<T>);
    case GATUN_MAX: return static_cast<Function>(&gloo::max<T>);
    default: return static_cast<Function>(&gloo::sum<T>);
  }
}

template <typename T>
std::function<void()> make_run(int variant, void* data, size_t count, gatun_op_t op) {
  T* values = static_cast<T*>(data);
  if (variant == kRing || variant == kBcube) {
    auto options = std::make_shared<gloo::AllreduceOptions>(context);
    options->setAlgorithm(variant == kRing ? gloo::AllreduceOptions::Algorithm::RING
                                           : gloo::AllreduceOptions::Algorithm::BCUBE);
    options->setOutput(values, count);  // in place: no input
    options->setReduceFunction(function<T>(op));
    return [options] { gloo::allreduce(*options); };
  }
  const std::vector<T*> pointers = {values};
  const int elements = static_cast<int>(count);
  std::shared_ptr<gloo::Algorithm> algorithm;
  if (variant == kRingChunked) {
    algorithm = std::make_shared<gloo::AllreduceRingChunked<T>>(context, pointers, elements, in_place_function<T>(op));
  } else {
    algorithm = std::make_shared<gloo::AllreduceHalvingDoubling<T>>(context, pointers, elements, in_place_function<T>(op));
  }
  return [algorithm] { algorithm->run(); };
}

int prepare(int variant, void* data, size_t count, gatun_type_t type, gatun_op_t op, char* error) {
  if (op == GATUN_AVG || count > INT_MAX) {
    std::snprintf(error, GATUN_PEER_ERROR_BYTES,
                  op == GATUN_AVG ? "Gloo has no average: choose sum, prod, max or min" : "more elements than Gloo counts");
    return -1;
  }
  return guarded(error, [&] {
    switch (type) {
      case GATUN_I8: prepared[variant] = make_run<int8_t>(variant, data, count, op); break;
      case GATUN_U8: prepared[variant] = make_run<uint8_t>(variant, data, count, op); break;
      case GATUN_I32: prepared[variant] = make_run<int32_t>(variant, data, count, op); break;
      case GATUN_I64: prepared[variant] = make_run<int64_t>(variant, data, count, op); break;
      case GATUN_U64: prepared[variant] = make_run<uint64_t>(variant, data, count, op); break;
      case GATUN_F32: prepared[variant] = make_run<float>(variant, data, count, op); break;
      case GATUN_F64: prepared[variant] = make_run<double>(variant, data, count, op); break;
      default: throw std::runtime_error("Gloo is compared in f32, f64, i8, u8, i32, i64 and u64 only");
    }
  });
}

int run(int variant, char* error) {
  return guarded(error, [&] { prepared[variant](); });
}

void finish(int variant) {
  prepared[variant] = nullptr;
}

}  // namespace

extern "C" GATUN_API const gatun_peer_api* gatun_perf_peer(void) {
  static const gatun_peer_api api = {GATUN_PEER_VERSION, describe,     nullptr, open_peer, close_peer,
                                     variants,           variant_name, prepare, run,       finish};
  return &api;
}
