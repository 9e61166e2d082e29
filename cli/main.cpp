// fovea: the command-line tool.
#include <csignal>
#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <fovea/introspect.h>

#include "cli/commands.h"
#include "cli/exit_codes.h"

namespace {

/// What was printed may not have arrived: a full disk, a closed descriptor.
int after_flush(int exit_code) {
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  return lost ? fovea::cli::complain("cannot write to standard output", fovea::cli::kFailure)
              : exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace fovea::cli;
  std::signal(SIGXFSZ, SIG_IGN);  // a file that becomes too large is an error like a full disk
  CLI::App app{"Exact fused attention: what is there, whether it is right, how fast it is"};
  app.name("fovea");
  app.set_version_flag("--version", fovea::version());
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0 success, 1 a failed run or check, 2 wrong usage.\n"
      "Environment: FOVEA_KERNEL, FOVEA_BACKEND, FOVEA_CPU_ISA, FOVEA_NUM_THREADS, FOVEA_PROOF, "
      "FOVEA_CUDA_EMULATE.");
  int exit_code = kSuccess;
  add_info_command(app, exit_code);
  add_check_command(app, exit_code);
  add_bench_command(app, exit_code);
  add_run_command(app, exit_code);
#ifdef FOVEA_WITH_LM
  add_train_command(app, exit_code);
  add_generate_command(app, exit_code);
#endif
  const auto is_command = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_command).empty()) {
    return complain(fmt::format("unknown command '{}' (see fovea --help)", argv[1]), kUsage);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return after_flush(app.exit(help));
  } catch (const CLI::ParseError& error) {
    return complain(fmt::format("{} (see fovea --help)", error.what()), kUsage);
  } catch (const std::exception& error) {
    return complain(error.what(), kFailure);
  }
  return after_flush(exit_code);
}
