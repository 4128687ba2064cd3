#include "host/tools/perf/launch_env.h"

#include <charconv>
#include <cstring>

namespace gatun::perf {
namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* needs;       // a variable that only this launcher sets; nullptr: rank and size are its own already
  const char* run_ids[3];  // parts of the job name, those that are set
};

// In the order of trust: torchrun may itself run under srun or mpirun, and mpirun under srun. srun's variables also exist in
// a batch script before srun has started anything; only a step has SLURM_STEP_ID.
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "MASTER_ADDR", {"TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
    {"mpirun",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     nullptr,
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", nullptr}},
    {"pmi", "PMI_RANK", "PMI_SIZE", nullptr, {"PMI_JOBID", "HYDI_JOB_ID", "SLURM_JOB_ID"}},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", {"SLURM_JOB_ID", "SLURM_STEP_ID", nullptr}},
};

std::string read_number(const GetEnv& get_env, const char* name, int* value) {
  const char* text = get_env(name);
  const char* end = text + std::strlen(text);
  const auto [stop, code] = std::from_chars(text, end, *value);
  if (code == std::errc() && stop == end && *value >= 0) return "";
  return std::string(name) + "=" + text + " in the environment is not a whole number";
}

}  // namespace

std::string detect_launch(const GetEnv& get_env, Launch* launch) {
  *launch = Launch{};
  for (const Launcher& launcher : kLaunchers) {
    const bool has_rank = get_env(launcher.rank) != nullptr, has_size = get_env(launcher.size) != nullptr;
    if (launcher.needs != nullptr && get_env(launcher.needs) == nullptr) continue;
    if (!has_rank && !has_size) continue;
    if (has_rank != has_size) {
      return std::string(has_rank ? launcher.rank : launcher.size) + " is set in the environment but " +
             (has_rank ? launcher.size : launcher.rank) + " is not; " + launcher.name + " sets both";
    }
    if (std::string error = read_number(get_env, launcher.rank, &launch->rank); !error.empty()) return error;
    if (std::string error = read_number(get_env, launcher.size, &launch->size); !error.empty()) return error;
    if (launch->size < 1 || launch->rank >= launch->size) {
      return std::string(launcher.rank) + "=" + std::to_string(launch->rank) + " is not below " + launcher.size + "=" +
             std::to_string(launch->size) + " in the environment";
    }
    launch->launcher = launcher.name;
    launch->job = launcher.name;
    for (const char* run_id : launcher.run_ids) {
      if (run_id != nullptr && get_env(run_id) != nullptr) launch->job += std::string("-") + get_env(run_id);
    }
    return "";
  }
  return "";
}

}  // namespace gatun::perf
