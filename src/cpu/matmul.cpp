#include "cpu/matmul.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "cpu/matmul_kernels.h"

namespace tetrad::cpu {
namespace {

// A range of work shorter than this many cycles costs more to hand out than it saves.
constexpr std::int64_t kMinChunkCycles = 4096;
// Panels that the single-row kernel runs side by side.
constexpr int kMinPanels = 4;

// How a job is cut: blocks of rows, each over every panel.
struct Cut {
  int num_blocks, rows_per_block, num_panels;
  std::int64_t num_units() const { return static_cast<std::int64_t>(num_blocks) * num_panels; }
};

Cut cut_job(const MatmulJob& job) {
  if (job.T == 0) return {0, 0, 0};
  constexpr int kAlign = 12;  // a multiple of every tile height, so that only the last block has a ragged tile
  const int num_blocks = (job.T + kRowBlock - 1) / kRowBlock;
  const int even_share = (job.T + num_blocks - 1) / num_blocks;
  const int rows = num_blocks == 1 ? job.T : (even_share + kAlign - 1) / kAlign * kAlign;
  return {(job.T + rows - 1) / rows, rows, job.w->num_panels()};
}

// Runs units [begin, end) of a job: whole blocks of rows where possible, the first and the last perhaps over a part of the panels.
void run_units(const MatmulJob& job, const Cut& cut, std::int64_t begin, std::int64_t end) {
  while (begin < end) {
    const int block = static_cast<int>(begin / cut.num_panels);
    const int first = static_cast<int>(begin % cut.num_panels);
    const int count = static_cast<int>(std::min<std::int64_t>(end - begin, cut.num_panels - first));
    const int row = block * cut.rows_per_block;
    matmul_panels(*job.w, first, count,
                  {.T = std::min(cut.rows_per_block, job.T - row),
                   .x = job.x + static_cast<std::ptrdiff_t>(row) * job.ldx,
                   .ldx = job.ldx,
                   .y = job.y + static_cast<std::ptrdiff_t>(row) * job.ldy,
                   .ldy = job.ldy,
                   .round = job.round});
    begin += count;
  }
}

void check_job(const MatmulJob& job) {
  TETRAD_CHECK(job.w != nullptr && job.T >= 0, "matmul: no weight or T={}", job.T);
  if (job.T == 0) return;
  TETRAD_CHECK(job.x != nullptr && job.y != nullptr, "matmul: no input or no output for T={}", job.T);
  TETRAD_CHECK(job.T == 1 || (job.ldx >= job.w->columns() && job.ldy >= job.w->rows()),
               "matmul: row strides {} and {} are shorter than K={} and N={}", job.ldx, job.ldy, job.w->columns(), job.w->rows());
}

}  // namespace

void matmul_jobs(std::span<const MatmulJob> jobs, ThreadPool& pool) {
  std::int64_t num_units = 0, cycles = 0;
  for (const MatmulJob& job : jobs) {
    check_job(job);
    num_units += cut_job(job).num_units();
    cycles += static_cast<std::int64_t>(job.w->num_panels()) * job.w->columns() * job.T;
  }
  if (num_units == 0) return;
  TETRAD_CHECK(num_units <= std::numeric_limits<int>::max(), "matmul: {} units of work", num_units);
  const std::int64_t unit_cycles = std::max<std::int64_t>(1, cycles / num_units);
  const auto min_chunk = static_cast<int>(std::max<std::int64_t>(kMinPanels, kMinChunkCycles / unit_cycles));
  pool.parallel_for(static_cast<int>(num_units), min_chunk, [&](int begin, int end) {
    std::int64_t job_begin = 0;
    for (const MatmulJob& job : jobs) {
      if (job_begin >= end) break;
      const Cut cut = cut_job(job);
      const std::int64_t job_end = job_begin + cut.num_units();
      if (job_end > begin)
        run_units(job, cut, std::max<std::int64_t>(begin, job_begin) - job_begin, std::min<std::int64_t>(end, job_end) - job_begin);
      job_begin = job_end;
    }
  });
}

void matmul(const PackedLinear& w, const MatmulArgs& a, ThreadPool& pool) {
  const MatmulJob job{.w = &w, .T = a.T, .x = a.x, .ldx = a.ldx, .y = a.y, .ldy = a.ldy, .round = a.round};
  matmul_jobs({&job, 1}, pool);
}

}  // namespace tetrad::cpu
