#include "checkpoint/weight_errors.h"

#include "base/error.h"
#include "base/integer.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "checkpoint/bound_tensors.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

namespace calandra {
namespace {

/// Rows whose sums are added up by one thread: the same for any number of them.
constexpr std::int64_t kRowsTogether = 64;

struct SquareSums {
  double difference = 0;
  double value = 0;
};

SquareSums sums_of_rows(const WeightMatrix& before, const WeightMatrix& after, std::int64_t begin, std::int64_t end,
                        const Kernels& kernels) {
  std::vector<float> old_row(static_cast<std::size_t>(before.cols)), new_row(old_row.size());
  SquareSums sums;
  for (std::int64_t r = begin; r < end; ++r) {
    kernels.decode_row(before, r, old_row);
    kernels.decode_row(after, r, new_row);
    for (std::size_t c = 0; c < old_row.size(); ++c) {
      const double value = old_row[c], difference = static_cast<double>(new_row[c]) - value;
      sums.value += value * value;
      sums.difference += difference * difference;
    }
  }
  return sums;
}

SquareSums sums_of(const WeightMatrix& before, const WeightMatrix& after, const Kernels& kernels, ThreadPool& pool) {
  std::vector<SquareSums> parts(static_cast<std::size_t>(ceil_div(before.rows, kRowsTogether)));
  pool.for_each(before.rows, kRowsTogether, [&](std::int64_t begin, std::int64_t end) {
    parts[static_cast<std::size_t>(begin / kRowsTogether)] = sums_of_rows(before, after, begin, end, kernels);
  });
  SquareSums sum;
  for (const SquareSums& part : parts) {
    sum.difference += part.difference;
    sum.value += part.value;
  }
  return sum;
}

bool same_bytes(const BoundTensor& a, const BoundTensor& b) {
  return a.matrix.format == b.matrix.format &&
         std::ranges::equal(a.stored, b.stored, [](const StoredTensor* x, const StoredTensor* y) {
           return x->view.type == y->view.type && std::ranges::equal(x->view.data, y->view.data);
         });
}

void require_one_network(const std::filesystem::path& before, const BoundTensors& a, const std::filesystem::path& after,
                         const BoundTensors& b) {
  const bool same = std::ranges::equal(a.tensors, b.tensors, [](const BoundTensor& x, const BoundTensor& y) {
    return x.spec.name == y.spec.name && x.spec.shape == y.spec.shape;
  });
  if (!same) {
    fail("{}: found another network ({} tensors) than in {} ({} tensors), expected the same", after.string(), b.tensors.size(),
         before.string(), a.tensors.size());
  }
}

std::vector<WeightErrorClass> classes_of(std::span<const WeightError> tensors) {
  std::map<std::pair<Component, WeightFormat>, WeightErrorClass> classes;
  for (const WeightError& tensor : tensors) {
    WeightErrorClass& sum = classes[{tensor.component, tensor.after}];
    sum.component = tensor.component;
    sum.after = tensor.after;
    ++sum.tensors;
    sum.difference_squares += tensor.difference_squares;
    sum.squares += tensor.squares;
  }
  std::vector<WeightErrorClass> out;
  out.reserve(classes.size());
  for (const auto& [key, sum] : classes) out.push_back(sum);
  return out;
}

/// 0 where there is nothing to be wrong about.
double ratio_of(double difference_squares, double squares) {
  return difference_squares == 0 ? 0 : std::sqrt(difference_squares / squares);
}

}  // namespace

std::string_view name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::F32: return "f32";
    case WeightFormat::BF16: return "bf16";
    case WeightFormat::F16: return "f16";
    case WeightFormat::Fp8: return "fp8";
    case WeightFormat::Fp8E8m0: return "fp8-ue8m0";
    case WeightFormat::Mxfp4: return "mxfp4";
  }
  return "";
}

double WeightError::relative_rms() const { return ratio_of(difference_squares, squares); }
double WeightErrorClass::relative_rms() const { return ratio_of(difference_squares, squares); }

WeightErrors compare_weights(const std::filesystem::path& before, const std::filesystem::path& after, int num_threads,
                             const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const BoundTensors a = bind_tensors(before), b = bind_tensors(after);
  require_one_network(before, a, after, b);
  const Kernels& kernels = kernels_for(choose_isa());
  ThreadPool pool(num_threads);
  std::int64_t done = 0, total = 0;
  for (const BoundTensor& tensor : a.tensors) total += std::ssize(tensor.stored.front()->view.data);
  WeightErrors errors;
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const BoundTensor &from = a.tensors[i], &to = b.tensors[i];
    done += std::ssize(from.stored.front()->view.data);
    if (!from.matrix) continue;
    if (same_bytes(from, to)) {
      ++errors.equal_tensors;
    } else {
      const SquareSums sums = sums_of(from.matrix, to.matrix, kernels, pool);
      errors.tensors.push_back(
          {from.spec.name, from.spec.component, from.matrix.format, to.matrix.format, sums.difference, sums.value});
    }
    for (const BoundTensor* read : {&from, &to}) {
      for (const StoredTensor* stored : read->stored) release_pages(stored->view.data);
    }
    if (progress) progress(done, total);
  }
  errors.classes = classes_of(errors.tensors);
  return errors;
}

}  // namespace calandra
