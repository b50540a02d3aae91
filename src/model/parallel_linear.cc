#include "model/parallel_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"

namespace distca {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Where a function stands in the model.
struct Site : torch::CustomClassHolder {
  Site(TensorGroup* group, std::string name) : group(group), name(std::move(name)) {}

  TensorGroup* group;
  std::string name;
};

using SitePointer = c10::intrusive_ptr<Site>;

void keep(AutogradContext* context, const SitePointer& site) {
  context->saved_data["site"] = c10::IValue::make_capsule(site);
}

SitePointer kept_site(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Site>(context->saved_data["site"].toCapsule());
}

std::vector<at::Tensor> cast_all(at::TensorList weights, at::ScalarType dtype) {
  std::vector<at::Tensor> cast;
  for (const at::Tensor& weight : weights) cast.push_back(weight.to(dtype));
  return cast;
}

/// out[rows] = a[rows] · b.
void multiply_rows(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, int64_t row,
                   int64_t rows) {
  at::Tensor place = out.narrow(0, row, rows);
  at::mm_out(place, a.narrow(0, row, rows), b);
}

struct GatheredLinear : torch::autograd::Function<GatheredLinear> {
  static variable_list forward(AutogradContext* context, const SitePointer& site, const at::Tensor& x,
                               at::TensorList weights) {
    RowGather gather(site->group, x, site->name);
    const std::vector<at::Tensor> cast = cast_all(weights, x.scalar_type());
    variable_list outputs;
    for (const at::Tensor& weight : cast) {
      outputs.push_back(at::empty({gather.all().size(0), weight.size(0)}, x.options()));
    }
    gather.for_each_block([&](int64_t row, int64_t rows) {
      for (size_t i = 0; i < cast.size(); ++i) {
        multiply_rows(outputs[i], gather.all(), cast[i].t(), row, rows);
      }
    });
    keep(context, site);
    variable_list saved{x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(saved);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list d_outputs) {
    const SitePointer site = kept_site(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::TensorList weights = at::TensorList(saved).slice(1);
    RowGather gather(site->group, x, site->name + ", again");
    RowScatter scatter(site->group, {gather.all().size(0), x.size(1)}, x.options(),
                       site->name + ", gradient");
    const std::vector<at::Tensor> cast = cast_all(weights, x.scalar_type());
    scatter.fill([&](int64_t row, int64_t rows) {
      multiply_rows(scatter.shares(), d_outputs[0], cast[0], row, rows);
      for (size_t i = 1; i < cast.size(); ++i) {
        scatter.shares().narrow(0, row, rows).addmm_(d_outputs[i].narrow(0, row, rows), cast[i]);
      }
    });
    for (int64_t run = 0; run < gather.runs().runs; ++run) gather.wait(run);
    variable_list gradients{at::Tensor(), at::Tensor()};
    for (size_t i = 0; i < weights.size(); ++i) {
      gradients.push_back(at::mm(d_outputs[i].t(), gather.all()).to(weights[i].scalar_type()));
    }
    gradients[1] = scatter.finish();
    return gradients;
  }
};

struct LinearScattered : torch::autograd::Function<LinearScattered> {
  static at::Tensor forward(AutogradContext* context, const SitePointer& site, const at::Tensor& x,
                            const at::Tensor& weight) {
    RowScatter scatter(site->group, {x.size(0), weight.size(0)}, x.options(), site->name);
    const at::Tensor cast = weight.to(x.scalar_type());
    scatter.fill([&](int64_t row, int64_t rows) { multiply_rows(scatter.shares(), x, cast.t(), row, rows); });
    keep(context, site);
    context->save_for_backward({x, weight});
    return scatter.finish();
  }

  static variable_list backward(AutogradContext* context, variable_list d_output) {
    const SitePointer site = kept_site(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    RowGather gather(site->group, d_output[0], site->name + ", gradient");
    const at::Tensor cast = weight.to(x.scalar_type());
    const at::Tensor dx = at::empty(x.sizes(), x.options());
    gather.for_each_block(
        [&](int64_t row, int64_t rows) { multiply_rows(dx, gather.all(), cast, row, rows); });
    return {at::Tensor(), dx, at::mm(gather.all().t(), x).to(weight.scalar_type())};
  }
};

struct ScatterRows : torch::autograd::Function<ScatterRows> {
  static at::Tensor forward(AutogradContext* context, const SitePointer& site, const at::Tensor& x) {
    RowScatter scatter(site->group, x.sizes(), x.options(), site->name);
    scatter.fill([&](int64_t row, int64_t rows) {
      scatter.shares().narrow(0, row, rows).copy_(x.narrow(0, row, rows));
    });
    keep(context, site);
    return scatter.finish();
  }

  static variable_list backward(AutogradContext* context, variable_list d_output) {
    const SitePointer site = kept_site(context);
    RowGather gather(site->group, d_output[0], site->name + ", gradient");
    gather.for_each_block([](int64_t, int64_t) {});
    return {at::Tensor(), gather.all()};
  }
};

void check_rows(const TensorGroup* group, const at::Tensor& x, const std::string& name) {
  DISTCA_CHECK(x.size(0) % size_of(group) == 0,
               "{}: {} rows can't be split evenly over {} tensor-parallel ranks", name, x.size(0),
               size_of(group));
}

}  // namespace

std::vector<at::Tensor> gathered_linear(TensorGroup* group, const at::Tensor& x,
                                        const std::vector<at::Tensor>& weights, const std::string& name) {
  if (size_of(group) == 1 && weights[0].scalar_type() == x.scalar_type()) {
    std::vector<at::Tensor> outputs;
    for (const at::Tensor& weight : weights) outputs.push_back(at::linear(x, weight));
    return outputs;
  }
  const at::TensorList list = weights;
  return GatheredLinear::apply(c10::make_intrusive<Site>(group, name), x, list);
}

at::Tensor linear_scattered(TensorGroup* group, const at::Tensor& x, const at::Tensor& weight,
                            const std::string& name) {
  if (size_of(group) == 1 && weight.scalar_type() == x.scalar_type()) return at::linear(x, weight);
  check_rows(group, x, name);
  return LinearScattered::apply(c10::make_intrusive<Site>(group, name), x, weight);
}

at::Tensor scatter_rows(TensorGroup* group, const at::Tensor& x, const std::string& name) {
  if (size_of(group) == 1) return x;
  check_rows(group, x, name);
  return ScatterRows::apply(c10::make_intrusive<Site>(group, name), x);
}

}  // namespace distca
