"""LSTM: nn.LSTM hides what its gradient needs, so while recording a scan of our own runs in its place.

In: a padded batch and an initial state. Out: what nn.LSTM gives; on the way back [x_t, h_{t-1}] and the gradients of
the gates. All parameters of one layer and direction act through gates_t = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh, so
together they are one linear layer of [x_t, h_{t-1}, 1, 1], and Σ_t g_t [x_t, h_{t-1}, 1, 1]ᵀ is an example's gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from ...errors import Refused
from ..compiled import done, loops_for, rows_together, threads
from .base import HandOver, Measured, Rule, Sums, Use, register, squared
from .gram import gram_square
from .linear import prefers_direct

State = tuple[Tensor, Tensor]


@register
class LSTM(Rule):
    """`torch.nn.LSTM`: any number of layers, both directions, state carried in and out."""

    layers = (nn.LSTM,)
    replaces_forward = True

    def check(self, module: nn.Module, name: str) -> None:
        assert isinstance(module, nn.LSTM)
        if module.proj_size > 0:
            raise Refused(
                f"{name}: an LSTM with proj_size has no rule; leave it 0 and put a Linear layer behind the LSTM"
            )

    def arrange(self, value: Tensor, examples: int) -> Tensor:
        if len(value) % examples:
            raise Refused(
                "an LSTM saw rows that cannot be shared out to the examples of the batch; its input must "
                "have a row for every example (in the second dimension unless batch_first)"
            )
        return value.reshape(examples, -1, value.shape[-1])

    def forward(self, module: nn.Module, hand_over: HandOver) -> Callable[..., Any]:
        """nn.LSTM's forward; its backward hands over each layer and direction by itself."""
        assert isinstance(module, nn.LSTM)
        lstm = module
        self.check(lstm, "LSTM")

        def forward(input: Tensor, hx: State | None = None) -> tuple[Tensor, State]:  # noqa: A002 (nn.LSTM's name)
            _check_input(lstm, input, hx)
            dtype = next(lstm.parameters()).dtype
            wide = torch.promote_types(dtype, torch.float32)  # half precision is not enough for a recurrence
            x = (input.transpose(0, 1) if lstm.batch_first else input).to(wide)
            if hx is None:
                zeros = x.new_zeros(x.shape[1], lstm.hidden_size)
                starts = [(zeros, zeros)] * (lstm.num_layers * (1 + lstm.bidirectional))
            else:
                starts = list(zip(hx[0].to(wide).unbind(), hx[1].to(wide).unbind(), strict=True))
            ends: list[State] = []
            for layer in range(lstm.num_layers):
                if layer and lstm.dropout and lstm.training:
                    x = functional.dropout(x, lstm.dropout)
                outputs = []
                for suffix in ("", "_reverse") if lstm.bidirectional else ("",):
                    start = starts[len(ends)]
                    output, h, c = _run(lstm, f"_l{layer}{suffix}", x.flip(0) if suffix else x, *start, hand_over)
                    outputs.append(output.flip(0) if suffix else output)
                    ends.append((h, c))
                x = torch.cat(outputs, 2) if lstm.bidirectional else outputs[0]
            h, c = (torch.stack(parts).to(dtype) for parts in zip(*ends, strict=True))
            x = x.transpose(0, 1) if lstm.batch_first else x
            return x.clone(memory_format=torch.contiguous_format).to(dtype), (h, c)  # not a view of what was saved

        return forward

    def measure(self, use: Use) -> Measured:
        """Squared norm of the gradients of W_ih, W_hh, b_ih and b_hh together, those that are trained.

        *Formal guarantees.* Let a_t = [x_t, h_{t-1}] (the trained matrices' columns) and g_t be the tensors as saved
        and k the number of trained biases. Gram: the square is Σ_ts (a_t·a_s+k)(g_t·g_s), computed in their precision;
        its error is at most κ·u·(Σ_t √(‖a_t‖²+k)‖g_t‖)², the squared spread, with κ the constant of clipping.py.
        Direct: the kept product and the kept Σ_t g_t are themselves what is summed, and the square is a sum of squares.
        Positions that the loss does not reach, such as padding at the end, have g_t = 0 and count for nothing.
        """
        biases = len(_biases(use.trained))
        if use.kept is None:
            gradient, activation = use.gradient, _columns(use, _matrices(use.trained))
            assert gradient is not None
            if activation is not None and not (
                gradient.dtype == torch.float32
                and prefers_direct(gradient.shape[1], activation.shape[2], gradient.shape[2])
            ):
                return gram_square(activation, gradient, float(biases))
            product = None if activation is None else torch.bmm(gradient.transpose(1, 2), activation)
            use.kept = (product, gradient.sum(1))
            use.activations, use.gradient = (), None
        product, bias = use.kept
        square = biases * squared(bias)
        if product is not None:
            square = square + squared(product)
        return Measured(square, square)

    def inner(self, use: Use, other: Use, names: frozenset[str]) -> Tensor:
        """Σ_ts (a_t·a'_s + k)(g_t·g'_s) over the columns and biases that both uses train, or from kept products.

        *Formal guarantees.* With exact products an identity, for any mixture of kept and unkept uses. A parameter that
        plays another role in the other use (W_ih tied to W_hh, or to another kind of layer) is refused.
        """
        if not isinstance(other.rule, LSTM):
            return super().inner(use, other, names)
        biases, mine = len(_biases(names)), _matrices(names)
        their = [_counterpart(use.parameter(name), _role(name), other) for name in mine]
        if use.kept is None and other.kept is None:
            assert use.gradient is not None
            assert other.gradient is not None
            activation, others = _columns(use, mine), _columns(other, their)
            products = torch.bmm(use.gradient.double(), other.gradient.double().transpose(1, 2))
            if activation is None or others is None:
                return biases * products.sum((1, 2))
            both = torch.bmm(activation.double(), others.double().transpose(1, 2))
            return both.add_(biases).mul_(products).sum((1, 2))
        result = biases * (_bias(use).double() * _bias(other)).sum(1)
        for one, another in zip(mine, their, strict=True):
            result = result + _matrix_inner(use, one, other, another)
        return result

    def add(self, use: Use, weights: Tensor, sums: Sums) -> None:
        matrices, biases = _matrices(use.trained), _biases(use.trained)
        if use.kept is not None:
            product, bias = use.kept
            both = None if product is None else torch.mv(product.flatten(1).t(), weights).view(product.shape[1:])
            shift = torch.mv(bias.t(), weights)
        else:
            gradient, activation = use.gradient, _columns(use, matrices)
            assert gradient is not None
            rows = _time_major(gradient).t()
            both = None if activation is None else torch.mm(rows, _time_major(activation * weights[:, None, None]))
            shift = torch.mv(rows, weights.repeat(gradient.shape[1]))
        if both is not None:
            for name in matrices:
                sums(use.parameter(name)).add_(_part(both, use, name))
        for name in biases:
            sums(use.parameter(name)).add_(shift)


def _check_input(module: nn.LSTM, x: Any, hx: State | None) -> None:
    if isinstance(x, PackedSequence):
        raise Refused(
            "an LSTM was called with a PackedSequence, in which no dimension is the batch; pass the padded batch: "
            "padding at the end costs nothing when the loss ignores it"
        )
    if x.dim() != 3:
        raise Refused(
            f"an LSTM was called with an input of {x.dim()} dimensions, so that no dimension is the batch; give it one "
            f"(x[{'None' if module.batch_first else ':, None'}] for a single example)"
        )
    if x.shape[1 if module.batch_first else 0] == 0:
        raise Refused("an LSTM was called with a sequence of length 0; give every batch at least one position")
    if hx is None:
        module.check_input(x, None)
    else:
        module.check_forward_args(x, hx, None)


def _run(
    module: nn.LSTM, suffix: str, x: Tensor, h: Tensor, c: Tensor, hand_over: HandOver
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer in one direction: outputs [T, B, H], last h and last c."""
    names = [name + suffix for name in ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if module.bias else ()))]
    parameters = [getattr(module, name).detach().to(x.dtype) for name in names]
    bias = parameters[2] + parameters[3] if module.bias else None
    # The parameters are frozen and x may be data: the anchor makes sure that there is a graph to go back through.
    anchor = torch.empty(0, device=x.device, requires_grad=True)
    outputs: tuple[Tensor, Tensor, Tensor] = _Scan.apply(
        x, h, c, anchor, *parameters[:2], bias, hand_over, frozenset(names)
    )  # type: ignore[no-untyped-call]
    return outputs


class _Scan(torch.autograd.Function):
    """The recurrence over time; its backward hands over [x_t, h_{t-1}] and the gradients of the gates.

    *Formal guarantees.* The gradient handed over is that of the loss with respect to position t's gates before their
    sigmoids and tanh, through everything that came later. Rows of the batch never meet: each is its own recurrence.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, c: Tensor, anchor: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor | None,
        hand_over: HandOver, names: frozenset[str],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        times, batch, width = x.shape
        # Row t holds [x_t, h_{t-1}], so that the scan writes what the norms and sums will read.
        both = x.new_empty(times + 1, batch, width + h.shape[1])
        both[:-1, :, :width] = x
        both[0, :, width:] = h
        cells = torch.cat([c[None], c.new_empty(times, *c.shape)])
        with torch.autocast(x.device.type, enabled=False):
            inputs, gates = both[:-1].flatten(0, 1)[:, :width], x.new_empty(times * batch, len(w_ih))
            if bias is None:
                torch.mm(inputs, w_ih.t(), out=gates)
            else:
                torch.addmm(bias, inputs, w_ih.t(), out=gates)
            gates = gates.view(times, batch, len(w_ih))
            squashed = _scan(gates, both[:, :, width:], cells, w_hh)
        ctx.save_for_backward(both, cells, gates, squashed, w_ih, w_hh)
        ctx.hand_over, ctx.names = hand_over, names
        return both[1:, :, width:], both[-1, :, width:], cells[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outputs: Tensor, h: Tensor, c: Tensor) -> tuple[Any, ...]:
        both, cells, gates, squashed, w_ih, w_hh = ctx.saved_tensors
        with torch.autocast(both.device.type, enabled=False):
            gradient, c = _scan_back(outputs, h, c, cells, gates, squashed, w_hh)
            x = (gradient.flatten(0, 1) @ w_ih).view(*gradient.shape[:2], -1) if ctx.needs_input_grad[0] else None
            h = gradient[0] @ w_hh
        ctx.hand_over((both[:-1].transpose(0, 1),), gradient.transpose(0, 1), ctx.names)
        return x, h, c, *[None] * 6


def _scan(gates: Tensor, hidden: Tensor, cells: Tensor, w_hh: Tensor) -> Tensor:
    """Turn W_ih x + b in `gates` [T, B, 4H] into the gates i, f, g, o; fill `hidden` and `cells` [T+1, B, H].

    Returns tanh of the cells. Everything is written where it stays, and each tensor is cut into its steps only once.
    """
    squashed = torch.empty_like(cells[1:])
    if loops := loops_for(gates, hidden, cells, w_hh):
        outer, inner, w_hh = hidden.stride(0), hidden.stride(1), w_hh.contiguous()
        written = (gates.data_ptr(), hidden.data_ptr(), outer, inner, cells.data_ptr(), squashed.data_ptr())
        done(loops.confide_scan(*written, w_hh.data_ptr(), *gates.shape[:2], w_hh.shape[1], threads()))
        return squashed
    transposed = w_hh.t().contiguous()  # once, where every product would do it again
    each, h, c, tanh = gates.unbind(), hidden.unbind(), cells.unbind(), squashed.unbind()
    i_f = gates[:, :, : 2 * len(transposed)].unbind()
    i, f, g, o = (part.unbind() for part in gates.chunk(4, 2))
    for t in range(len(gates)):
        each[t].addmm_(h[t], transposed)
        i_f[t].sigmoid_()
        g[t].tanh_()
        o[t].sigmoid_()
        torch.mul(f[t], c[t], out=c[t + 1]).addcmul_(i[t], g[t])
        torch.tanh(c[t + 1], out=tanh[t])
        torch.mul(o[t], tanh[t], out=h[t + 1])
    return squashed


def _scan_back(
    outputs: Tensor, h: Tensor, c: Tensor, cells: Tensor, gates: Tensor, squashed: Tensor, w_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """From the gradients of all outputs and of the last state to those of the gates [T, B, 4H] and of the first cell.

    With dh and dc the gradients of h_t and c_t, those of i, f, g are dc times a factor and that of o is dh times one.
    The factors, and that of dh in dc, need nothing from the way back, so they are formed for all steps at once.
    """
    gradient = torch.empty_like(gates)
    if loops := loops_for(outputs, h, c, cells, gates, squashed, w_hh):
        outputs, w_hh = rows_together(outputs), w_hh.contiguous()
        dh, dc = (part.clone(memory_format=torch.contiguous_format) for part in (h, c))
        come = (outputs.data_ptr(), outputs.stride(0), outputs.stride(1), dh.data_ptr(), dc.data_ptr())
        kept = (cells.data_ptr(), gates.data_ptr(), squashed.data_ptr(), w_hh.data_ptr(), gradient.data_ptr())
        done(loops.confide_scan_back(*come, *kept, *gates.shape[:2], w_hh.shape[1], threads()))
        return gradient, dc
    i, f, g, o = gates.chunk(4, 2)
    for_i, for_f, for_g, for_o = gradient.chunk(4, 2)
    by_sigmoid, by_tanh = torch.ops.aten.sigmoid_backward.grad_input, torch.ops.aten.tanh_backward.grad_input
    by_sigmoid(g, i, grad_input=for_i)
    by_sigmoid(cells[:-1], f, grad_input=for_f)
    by_tanh(i, g, grad_input=for_g)
    by_sigmoid(squashed, o, grad_input=for_o)
    factor = by_tanh(o, squashed, grad_input=torch.empty_like(squashed)).unbind()
    each, dout, forget = gradient.unbind(), outputs.unbind(), f.unbind()
    i_f_g = gradient.view(*gradient.shape[:2], 4, -1)[:, :, :3].unbind()
    output = for_o.unbind()
    dh, dc = h + dout[-1], c.clone()
    spread = dc[:, None]
    for t in range(len(gates) - 1, -1, -1):
        dc.addcmul_(dh, factor[t])
        i_f_g[t].mul_(spread)
        output[t].mul_(dh)
        dc.mul_(forget[t])
        if t:
            torch.addmm(dout[t - 1], each[t], w_hh, out=dh)
    return gradient, dc


def _role(name: str) -> str:
    """weight_ih, weight_hh, bias_ih or bias_hh."""
    return name[: name.index("_l")]


def _counterpart(parameter: nn.Parameter, role: str, other: Use) -> str:
    """The name of a matrix in another use of it."""
    names = [name for name in other.trained if other.parameter(name) is parameter]
    if len(names) != 1 or _role(names[0]) != role:
        raise Refused(
            "W_ih and W_hh of an LSTM are one parameter, and no rule says what its gradient norm is; untie them"
        )
    return names[0]


def _matrices(names: frozenset[str]) -> list[str]:
    return sorted(name for name in names if name.startswith("weight"))


def _biases(names: frozenset[str]) -> list[str]:
    return sorted(name for name in names if name.startswith("bias"))


def _columns(use: Use, matrices: list[str]) -> Tensor | None:
    """The part of [x_t, h_{t-1}] that the matrices multiply; None if there is none."""
    (activation,) = use.activations
    if len(matrices) == 2:
        return activation
    return _part(activation, use, matrices[0]) if matrices else None


def _part(columns: Tensor, use: Use, name: str) -> Tensor:
    """Of all trained columns those of one matrix: W_ih has the first, W_hh the last."""
    width = use.parameter(name).shape[1]
    return columns[..., :width] if _role(name) == "weight_ih" else columns[..., -width:]


def _matrix_inner(use: Use, mine: str, other: Use, theirs: str) -> Tensor:
    """⟨gradient of a matrix in one use, in another⟩ where at least one of them is kept."""
    if use.kept is None:
        return _matrix_inner(other, theirs, use, mine)
    kept = _part(use.kept[0], use, mine)
    if other.kept is not None:
        return (kept.double() * _part(other.kept[0], other, theirs)).sum((1, 2))
    assert other.gradient is not None
    (activation,) = other.activations
    return (torch.bmm(other.gradient.double(), kept.double()) * _part(activation, other, theirs)).sum((1, 2))


def _bias(use: Use) -> Tensor:
    if use.kept is not None:
        bias: Tensor = use.kept[1]
        return bias
    assert use.gradient is not None
    return use.gradient.sum(1)


def _time_major(value: Tensor) -> Tensor:
    """[T·B, features]: as the scan left it in memory, so that nothing is copied."""
    return value.transpose(0, 1).flatten(0, 1)
