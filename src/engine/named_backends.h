// Backends by the names that options give them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_team.h"
#include "ops/backend.h"

namespace tidemill {

// All names, whether or not this program and machine have the backend; the default first.
std::vector<std::string> backend_names();
// The same for people: "cpu, cpu-avx2, ...".
std::string_view backend_list();

// Whether the backend of this name computes on a device with memory of its own.
bool on_device(std::string_view name);

// Errors: kInvalidArgument (no such name; instructions that the machine lacks), kDevice (no such
// device, or built without it), kConflictingOptions (roundings that the backend does not have).
Result<std::unique_ptr<Backend>> make_named_backend(std::string_view name, const Rounding& rounding,
                                                    ThreadTeam& team);

}  // namespace tidemill
