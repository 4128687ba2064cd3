// Ring: a communicator's way without the switch: the mesh of its ranks, the engine over it, and how what was in flight at
// the switch's death is finished on it.
//
// run() and recover() block in the lane's background thread until their end, the deadline or interrupt().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/base/settings.h"
#include "host/fallback/engine.h"
#include "host/fallback/mesh.h"
#include "host/lib/datapath.h"
#include "protocols/recovery.h"

namespace gatun {

class Ring {
 public:
  // Connects to all other ranks. note: what a user should know of the choice of engine; "" if nothing.
  static Result<std::unique_ptr<Ring>> make(std::unique_ptr<MeshListener> listener, uint32_t rank,
                                            const std::vector<std::string>& cards, const std::string& fallback,
                                            TimeNs deadline, std::string* note);

  // Every rank gives a number and learns whether all gave the same. Before Mesh::run() is of use; bounded by the deadline.
  Result<bool> all_same(uint32_t number, TimeNs deadline);

  Status run(const Request& request);
  // Carries the plan out: afterwards every chunk of its kFinish operations is in place here.
  Status recover(const RecoveryPlan& plan, Datapath& datapath, TimeNs deadline);
  void interrupt(const Status& reason) { mesh_->interrupt(reason); }

  Mesh& mesh() { return *mesh_; }
  const char* engine() const { return engine_->name(); }
  bool exact() const { return exact_; }
  std::vector<std::string> names() const;  // "rank 2 (host b, pid 77)", by rank

 private:
  Ring(std::unique_ptr<Mesh> mesh, std::unique_ptr<Engine> engine) : mesh_(std::move(mesh)), engine_(std::move(engine)) {}
  Status hand_over(const RecoveryPlan& plan, Datapath& datapath, TimeNs deadline);
  Status reduce_anew(const RecoveryPlan& plan, uint32_t op, Datapath& datapath, TimeNs deadline);

  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Engine> engine_;
  bool exact_ = false;
};

}  // namespace gatun
