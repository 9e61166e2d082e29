// The commands of the fovea program. Each function adds its subcommand; when the user chose it, its
// callback runs the command and leaves the program's exit status in `exit_code`, which must outlive
// `app`.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

void add_info_command(CLI::App& app, int& exit_code);
void add_check_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);
void add_run_command(CLI::App& app, int& exit_code);
void add_train_command(CLI::App& app, int& exit_code);
void add_generate_command(CLI::App& app, int& exit_code);

}  // namespace fovea::cli
