// The loops of the reduction kernels, per instruction set and without a guard: included by kernels_*.cc through
// foreach_target.h.
//
// A Codec turns memory of one element type into vectors of the type that is reduced in and back; a State reduces one vector.
// native_loop() is for inputs and output of the element type itself, and works on whole vectors of memory, whose elements
// the codec may spread over its parts in any order. A codec may have a guard that sees all inputs; what does not pass it is
// reduced again by the codec's Fallback. mixed_loop() is for narrow floats of which some inputs, or the output, are f32
// partial sums, and works on elements in order. The last, incomplete vector goes through copies on the stack.

#include "switch_model/kernels_states_inl.h"

HWY_BEFORE_NAMESPACE();
namespace gatun {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// What a codec that can take every input has as its guard.
struct NoGuard {
  HWY_INLINE void start() {}
  HWY_INLINE bool clear() const { return true; }
};

template <class Codec, class State, int kUnroll>
struct Block {
  static constexpr int kParts = Codec::kParts;
  using V = Vec<typename Codec::Reduced>;
  State states[kUnroll][kParts];
  typename Codec::Guard guard;

  HWY_INLINE void first(const uint8_t* a) {
    guard.start();
    GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) {
      V x[kParts];
      load(a + u * kVecBytes, x);
      GATUN_UNROLL for (int part = 0; part < kParts; ++part) states[u][part].first(x[part]);
    }
  }
  HWY_INLINE void first_two(const uint8_t* a, const uint8_t* b) {
    guard.start();
    GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) {
      V x[kParts], y[kParts];
      load(a + u * kVecBytes, x);
      load(b + u * kVecBytes, y);
      GATUN_UNROLL for (int part = 0; part < kParts; ++part) states[u][part].first_two(x[part], y[part]);
    }
  }
  HWY_INLINE void next(const uint8_t* a) {
    GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) {
      V x[kParts];
      load(a + u * kVecBytes, x);
      GATUN_UNROLL for (int part = 0; part < kParts; ++part) states[u][part].next(x[part]);
    }
  }
  HWY_INLINE void next_two(const uint8_t* a, const uint8_t* b) {
    GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) {
      V x[kParts], y[kParts];
      load(a + u * kVecBytes, x);
      load(b + u * kVecBytes, y);
      GATUN_UNROLL for (int part = 0; part < kParts; ++part) states[u][part].next_two(x[part], y[part]);
    }
  }
  HWY_INLINE void store(uint8_t* out, const typename Codec::Finish& finish) {
    GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) {
      V x[kParts];
      GATUN_UNROLL for (int part = 0; part < kParts; ++part) x[part] = states[u][part].result();
      Codec::store(x, finish, out + u * kVecBytes);
    }
  }

 private:
  HWY_INLINE void load(const uint8_t* from, V (&x)[kParts]) {
    if constexpr (Codec::kPrefetchBytes > 0) hwy::Prefetch(from + Codec::kPrefetchBytes);
    Codec::load(from, guard, x);
  }
};

template <class Codec, class State>
HWY_INLINE void fallback(const uint8_t* const* in, int inputs, uint8_t* out, size_t at, size_t end,
                         const typename Codec::Finish& finish);

// Each reduces [at, bytes) in steps of kUnroll vectors and returns where the rest begins.
template <class Codec, class State, int kUnroll>
HWY_INLINE size_t native_loop(const uint8_t* const* in, int inputs, uint8_t* out, size_t at, size_t bytes,
                              const typename Codec::Finish& finish) {
  for (; at + kUnroll * kVecBytes <= bytes; at += kUnroll * kVecBytes) {
    Block<Codec, State, kUnroll> block;
    block.first(in[0] + at);
    int k = 1;
    for (; k + 2 <= inputs; k += 2) block.next_two(in[k] + at, in[k + 1] + at);
    if (k < inputs) block.next(in[k] + at);
    if (block.guard.clear()) {
      block.store(out + at, finish);
    } else {
      fallback<Codec, State>(in, inputs, out, at, at + kUnroll * kVecBytes, finish);
    }
  }
  return at;
}

template <class Codec, class State>
HWY_NOINLINE void reduce_again(const uint8_t* const* in, int inputs, uint8_t* out, size_t at, size_t end,
                               const typename Codec::Finish& finish) {
  native_loop<Codec, State, 1>(in, inputs, out, at, end, finish);
}

template <class Codec, class State>
HWY_INLINE void fallback(const uint8_t* const* in, int inputs, uint8_t* out, size_t at, size_t end,
                         const typename Codec::Finish& finish) {
  if constexpr (!std::is_same_v<typename Codec::Guard, NoGuard>) {
    reduce_again<typename Codec::Fallback, State>(in, inputs, out, at, end, finish);
  }
}

// The same for an even number of inputs that is known here, without guard: nothing but loads and arithmetic remains.
template <class Codec, class State, int kUnroll, int kInputs>
HWY_INLINE size_t fixed_loop(const uint8_t* const* in, uint8_t* out, size_t at, size_t bytes,
                             const typename Codec::Finish& finish) {
  const uint8_t* from[kInputs];  // a copy that stores to out cannot change
  GATUN_UNROLL for (int k = 0; k < kInputs; ++k) from[k] = in[k];
  for (; at + kUnroll * kVecBytes <= bytes; at += kUnroll * kVecBytes) {
    Block<Codec, State, kUnroll> block;
    block.first_two(from[0] + at, from[1] + at);
    GATUN_UNROLL for (int k = 2; k < kInputs; k += 2) block.next_two(from[k] + at, from[k + 1] + at);
    block.store(out + at, finish);
  }
  return at;
}

template <class Codec, class State>
HWY_NOINLINE void reduce_native(const ReduceArgs& args, const typename Codec::Finish& finish) {
  const size_t bytes = args.elems * Codec::kElemBytes;
  const uint8_t* in[kReduceInputsMax];
  for (int k = 0; k < args.inputs; ++k) in[k] = static_cast<const uint8_t*>(args.in[k]);
  auto* out = static_cast<uint8_t*>(args.out);

  size_t at = 0;
  if constexpr (Codec::template kFixedInputs<State>) {
    constexpr int kUnroll = 2;
    switch (args.inputs) {
      case 2: at = fixed_loop<Codec, State, kUnroll, 2>(in, out, at, bytes, finish); break;
      case 4: at = fixed_loop<Codec, State, kUnroll, 4>(in, out, at, bytes, finish); break;
      case 8: at = fixed_loop<Codec, State, kUnroll, 8>(in, out, at, bytes, finish); break;
      case 16: at = fixed_loop<Codec, State, kUnroll, 16>(in, out, at, bytes, finish); break;
    }
  }
  if constexpr (Codec::kUnroll > 1) at = native_loop<Codec, State, Codec::kUnroll>(in, args.inputs, out, at, bytes, finish);

  // One vector at a time; the last, incomplete one through copies.
  alignas(64) uint8_t copies[kReduceInputsMax][kVecBytes];
  alignas(64) uint8_t result[kVecBytes];
  uint8_t* to = out;
  while (at < bytes) {
    const size_t rest = bytes - at;
    size_t end = bytes;
    if (rest < kVecBytes) {
      for (int k = 0; k < args.inputs; ++k) {
        std::memset(copies[k], 0, kVecBytes);
        std::memcpy(copies[k], in[k] + at, rest);
        in[k] = copies[k];
      }
      to = result;
      at = 0;
      end = kVecBytes;
    }
    at = native_loop<Codec, State, 1>(in, args.inputs, to, at, end, finish);
    if (to == result) {
      std::memcpy(out + bytes - rest, result, rest);
      return;
    }
  }
}

// As native_loop(), but at and elems count elements, and each input says which type it is of.
template <class Codec, class State, int kUnroll>
HWY_INLINE size_t mixed_loop(const ReduceArgs& args, const uint8_t* const* in, uint8_t* out, size_t at, size_t elems,
                             const typename Codec::Finish& finish) {
  constexpr size_t kLanes = kVecBytes / sizeof(float);
  const size_t out_bytes = args.out_partial ? sizeof(float) : Codec::kElemBytes;
  for (; at + kUnroll * kLanes <= elems; at += kUnroll * kLanes) {
    State states[kUnroll];
    for (int k = 0; k < args.inputs; ++k) {
      const bool partial = (args.partial >> k) & 1;
      const size_t bytes = partial ? sizeof(float) : Codec::kElemBytes;
      Vec<float> x[kUnroll];
      if (partial) {
        GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) x[u] = load_bytes(Tag<float>(), in[k] + (at + u * kLanes) * bytes);
      } else {
        GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) x[u] = Codec::load_ordered(in[k] + (at + u * kLanes) * bytes);
      }
      if (k == 0) {
        GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) states[u].first(x[u]);
      } else {
        GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) states[u].next(x[u]);
      }
    }
    GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) {
      uint8_t* to = out + (at + u * kLanes) * out_bytes;
      if (args.out_partial) {
        store_bytes(Tag<float>(), with_canonical_nan<float>(states[u].result()), to);
      } else {
        Codec::store_ordered(finish.apply(states[u].result()), to);
      }
    }
  }
  return at;
}

template <class Codec, class State>
HWY_NOINLINE void reduce_mixed(const ReduceArgs& args, const typename Codec::Finish& finish) {
  constexpr size_t kLanes = kVecBytes / sizeof(float);
  const uint8_t* in[kReduceInputsMax];
  for (int k = 0; k < args.inputs; ++k) in[k] = static_cast<const uint8_t*>(args.in[k]);
  auto* out = static_cast<uint8_t*>(args.out);

  size_t at = mixed_loop<Codec, State, 4>(args, in, out, 0, args.elems, finish);
  at = mixed_loop<Codec, State, 1>(args, in, out, at, args.elems, finish);
  const size_t rest = args.elems - at;
  if (rest == 0) return;
  alignas(64) uint8_t copies[kReduceInputsMax][kVecBytes];
  alignas(64) uint8_t result[kVecBytes];
  for (int k = 0; k < args.inputs; ++k) {
    const size_t bytes = (args.partial >> k) & 1 ? sizeof(float) : Codec::kElemBytes;
    std::memset(copies[k], 0, kVecBytes);
    std::memcpy(copies[k], in[k] + at * bytes, rest * bytes);
    in[k] = copies[k];
  }
  mixed_loop<Codec, State, 1>(args, in, result, 0, kLanes, finish);
  const size_t out_bytes = args.out_partial ? sizeof(float) : Codec::kElemBytes;
  std::memcpy(out + at * out_bytes, result, rest * out_bytes);
}

template <class Codec, template <typename> class State>
HWY_INLINE void reduce_codec(const ReduceArgs& args) {
  const typename Codec::Finish finish(args);
  if constexpr (Codec::kNarrow) {
    const uint64_t all = ~uint64_t{0} >> (64 - args.inputs);
    if (args.out_partial || (args.partial & all)) return reduce_mixed<Codec, State<typename Codec::Reduced>>(args, finish);
  }
  reduce_native<Codec, State<typename Codec::Reduced>>(args, finish);
}

template <class Codec>
HWY_INLINE void reduce_type(const ReduceArgs& args) {
  switch (args.op) {
    case Op::kSum:
    case Op::kAvg: return reduce_codec<Codec, SumState>(args);
    case Op::kProd: return reduce_codec<Codec, ProductState>(args);
    case Op::kMax: return reduce_codec<Codec, MaxState>(args);
    case Op::kMin: return reduce_codec<Codec, MinState>(args);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace gatun
HWY_AFTER_NAMESPACE();
