// Makes the vectors of models/mini anew with the reference backend: of every file of
// tests/vectors/mini that is one prompt, only the ids are kept. See tests/vectors/README.md.
#include <fmt/core.h>

#include "recording.h"

int main() {
  using namespace tidemill;
  for (const std::string name : {"p1", "p5", "p129", "p1100", "chat_recall"}) {
    const auto path = vectors("mini/" + name + ".npz");
    const auto ids = Npz(path).values<int32_t>("ids");
    Machine machine(mini_model(), Machine::reference());
    write_npz(path, record(machine, ids));
    fmt::print("{}: {} bytes\n", path.string(), std::filesystem::file_size(path));
  }
}
