// connect_mesh: two connections between this rank and every other. The rank with the higher number connects and shows the
// job's cookie in a HELLO; the other answers with its own card's cookie. PROTOCOL.md, "The mesh", has the bytes.
//
// Nothing blocks but one poll: a stranger that is silent, slow or wrong costs a descriptor for a short time, nothing else.
#pragma once

#include <vector>

#include "host/fallback/mesh.h"

namespace gatun {

inline constexpr size_t kMeshRanksMax = 65535;  // a bulk ticket keeps the rank in 16 bits

// By rank; none for this one. Non-blocking, tuned.
struct MeshConnections {
  std::vector<Fd> messages;
  std::vector<Fd> bulk;
};

Result<MeshConnections> connect_mesh(const MeshListener& listener, uint32_t rank, const std::vector<MeshCard>& cards,
                                     TimeNs deadline);

}  // namespace gatun
