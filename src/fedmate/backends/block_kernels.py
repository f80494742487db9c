"""Triton kernels: convolution, leaky ReLU and 2 x 2 max-pooling of all clients in one launch, and their gradients.

Libraries run the grouped convolution that vmap makes of many clients one group at a time. Here a program of the grid
computes a tile of one client as a matrix product on the tensor cores: rows are pixels, columns output channels, and
what is summed over, kernel positions x input channels, is gathered on the way (nothing is unfolded in memory). Pooling
happens in registers: of four products only the largest is written, with a byte that says which.

Activations lie in memory with channels last, so that neighbouring numbers of a patch are read at once. Sums over a
split axis are kept apart and added afterwards, never with atomics: results do not depend on the order of programs.
"""

# The language of kernels has no types, and capitals are what is known when a kernel is compiled.
# ruff: noqa: ANN001, ANN202, N803

from __future__ import annotations

from typing import NamedTuple, final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from fedmate.backends.blocks import Block, Gradients, Kernels, Pooled

PROGRAMS = 1024
"""How many programs keep a large GPU busy: sums are split until there are so many."""
LANES = 4
"""Channels are padded to a multiple of this: 16 bytes are read at once."""


class Tiles(NamedTuple):
    """How a kernel cuts up its work: rows and summed terms of a tile, warps of a program, loads in flight."""

    rows: int
    terms: int
    warps: int
    stages: int


CONVOLVE = {0: Tiles(rows=32, terms=16, warps=2, stages=2), 64: Tiles(rows=32, terms=64, warps=4, stages=2)}
WEIGHT_GRADIENT = {0: Tiles(rows=64, terms=32, warps=2, stages=1), 8: Tiles(rows=64, terms=64, warps=4, stages=1)}
INPUT_GRADIENT = {
    0: Tiles(rows=64, terms=32, warps=4, stages=1),
    64: Tiles(rows=64, terms=64, warps=4, stages=1),
    128: Tiles(rows=128, terms=32, warps=8, stages=1),
}
"""By the least number of input channels, found by trying some dozens on an H200 with the networks for CIFAR."""


@triton.jit  # type: ignore[untyped-decorator]
def _convolve(  # type: ignore[no-untyped-def]
    x, weight, bias, y, winner, x_client, w_client, b_client, pixels, slope,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, KERNEL: tl.constexpr,
    POOLED_HEIGHT: tl.constexpr, POOLED_WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Write a tile of pooled pixels x output channels."""
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    row = m // POOLED_WIDTH
    top = (row // POOLED_HEIGHT).to(tl.int64) * HEIGHT + 2 * (row % POOLED_HEIGHT)
    patches = (
        x + client * x_client + tl.where(m < pixels, (top * WIDTH + 2 * (m % POOLED_WIDTH)) * CHANNELS, 0)[:, None]
    )
    kernels = weight + client * w_client + o[None, :]

    window: tl.constexpr = KERNEL + 1
    terms: tl.constexpr = window * window * CHANNELS
    dot: tl.constexpr = "ieee" if PRECISION == "strict" else "tf32"
    first = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    second = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    third = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    fourth = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    for start in range(0, terms, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        down, right, channel = k // CHANNELS // window, k // CHANNELS % window, k % CHANNELS
        a = tl.load(patches + ((down * WIDTH + right) * CHANNELS + channel)[None, :], k[None, :] < terms, 0.0)
        # Of the window of a pool each of its four pixels sees all but one row and one column.
        at = ((down * KERNEL + right) * CHANNELS + channel)[:, None] * OUTPUTS
        real = (k < terms)[:, None] & (o[None, :] < OUTPUTS)
        upper, lower = (down < KERNEL)[:, None] & real, (down > 0)[:, None] & real
        left, right_of = (right < KERNEL)[:, None], (right > 0)[:, None]
        w0 = tl.load(kernels + at, upper & left, 0.0)
        w1 = tl.load(kernels + at - CHANNELS * OUTPUTS, upper & right_of, 0.0)
        w2 = tl.load(kernels + at - KERNEL * CHANNELS * OUTPUTS, lower & left, 0.0)
        w3 = tl.load(kernels + at - (KERNEL + 1) * CHANNELS * OUTPUTS, lower & right_of, 0.0)
        if PRECISION == "bf16":
            a, w0, w1 = a.to(tl.bfloat16), w0.to(tl.bfloat16), w1.to(tl.bfloat16)
            w2, w3 = w2.to(tl.bfloat16), w3.to(tl.bfloat16)
        first = tl.dot(a, w0, first, input_precision=dot)
        second = tl.dot(a, w1, second, input_precision=dot)
        third = tl.dot(a, w2, third, input_precision=dot)
        fourth = tl.dot(a, w3, fourth, input_precision=dot)

    # As max_pool2d does it: the first of equals wins, and NaN wins over all.
    best, which = first, tl.zeros((BLOCK_M, BLOCK_O), tl.int32)
    better = (second > best) | (second != second)
    best, which = tl.where(better, second, best), tl.where(better, 1, which)
    better = (third > best) | (third != third)
    best, which = tl.where(better, third, best), tl.where(better, 2, which)
    better = (fourth > best) | (fourth != fourth)
    best, which = tl.where(better, fourth, best), tl.where(better, 3, which)
    best += tl.load(bias + client * b_client + o, o < OUTPUTS, 0.0)[None, :]
    # ReLU of minus infinity is 0, not NaN.
    bent = tl.where((slope == 0) & (best < 0), 0.0, best * slope)
    best = tl.where(best > 0, best, bent)
    place = (client * pixels + m[:, None]) * OUTPUTS + o[None, :]
    written = (m[:, None] < pixels) & (o[None, :] < OUTPUTS)
    tl.store(y + place, best, written)
    tl.store(winner + place, which.to(tl.uint8), written)


@triton.jit(do_not_specialize=["clients"])  # type: ignore[untyped-decorator]
def _weight_gradient(  # type: ignore[no-untyped-def]
    x, grad, winner, by_weight, by_bias, x_client, clients, pixels, share,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, REAL_CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr, POOLED_HEIGHT: tl.constexpr, POOLED_WIDTH: tl.constexpr, OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Write tiles of window terms x output channels, one for each pixel of a pool, summed over a `share` of pools."""
    tiles: tl.constexpr = (OUTPUTS + BLOCK_O - 1) // BLOCK_O
    split = tl.program_id(1)
    client = tl.program_id(2).to(tl.int64)
    k = (tl.program_id(0) // tiles) * BLOCK_K + tl.arange(0, BLOCK_K)
    o = (tl.program_id(0) % tiles) * BLOCK_O + tl.arange(0, BLOCK_O)
    window: tl.constexpr = KERNEL + 1
    terms: tl.constexpr = window * window * CHANNELS
    dot: tl.constexpr = "ieee" if PRECISION == "strict" else "tf32"
    down, right, channel = k // CHANNELS // window, k // CHANNELS % window, k % CHANNELS
    patches = x + client * x_client + ((down * WIDTH + right) * CHANNELS + channel)[None, :]
    values = client * pixels * OUTPUTS + o[None, :]
    first = tl.zeros((BLOCK_K, BLOCK_O), tl.float32)
    second = tl.zeros((BLOCK_K, BLOCK_O), tl.float32)
    third = tl.zeros((BLOCK_K, BLOCK_O), tl.float32)
    fourth = tl.zeros((BLOCK_K, BLOCK_O), tl.float32)
    total_bias = tl.zeros((BLOCK_O,), tl.float32)
    end = tl.minimum((split + 1) * share, pixels)
    for start in range(split * share, end, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        row = m // POOLED_WIDTH
        top = (row // POOLED_HEIGHT).to(tl.int64) * HEIGHT + 2 * (row % POOLED_HEIGHT)
        corner = tl.where(m < end, (top * WIDTH + 2 * (m % POOLED_WIDTH)) * CHANNELS, 0)
        counted = (m[:, None] < end) & (o[None, :] < OUTPUTS)
        at = values + m.to(tl.int64)[:, None] * OUTPUTS
        g = tl.load(grad + at, counted, 0.0)
        which = tl.load(winner + at, counted, 0)
        total_bias += tl.sum(g, 0)
        a = tl.trans(tl.load(patches + corner[:, None], (m[:, None] < end) & (k[None, :] < terms), 0.0))
        if PRECISION == "bf16":
            a, g = a.to(tl.bfloat16), g.to(tl.bfloat16)
        nothing = tl.zeros_like(g)
        first = tl.dot(a, tl.where(which == 0, g, nothing), first, input_precision=dot)
        second = tl.dot(a, tl.where(which == 1, g, nothing), second, input_precision=dot)
        third = tl.dot(a, tl.where(which == 2, g, nothing), third, input_precision=dot)
        fourth = tl.dot(a, tl.where(which == 3, g, nothing), fourth, input_precision=dot)

    # Where PyTorch keeps it, [outputs, channels, rows, columns]; what a pixel does not see of the window is left out.
    size: tl.constexpr = REAL_CHANNELS * KERNEL * KERNEL
    parts = 4 * split * clients + client
    place = o[None, :] * size + ((channel * KERNEL + down) * KERNEL + right)[:, None]
    real = ((k < terms) & (channel < REAL_CHANNELS))[:, None] & (o[None, :] < OUTPUTS)
    upper, lower = (down < KERNEL)[:, None] & real, (down > 0)[:, None] & real
    left, right_of = (right < KERNEL)[:, None], (right > 0)[:, None]
    step = clients.to(tl.int64) * OUTPUTS * size
    out = by_weight + parts * OUTPUTS * size + place
    tl.store(out, first, upper & left)
    tl.store(out + step - 1, second, upper & right_of)
    tl.store(out + 2 * step - KERNEL, third, lower & left)
    tl.store(out + 3 * step - KERNEL - 1, fourth, lower & right_of)
    if tl.program_id(0) < tiles:
        tl.store(by_bias + (split * clients + client) * OUTPUTS + o, total_bias, o < OUTPUTS)


@triton.jit  # type: ignore[untyped-decorator]
def _input_gradient(  # type: ignore[no-untyped-def]
    grad, winner, weight, by_x, w_client, quads, pooled_pixels, pixels,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, KERNEL: tl.constexpr, PADDING: tl.constexpr,
    POOLED_HEIGHT: tl.constexpr, POOLED_WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write tiles of input pixels x input channels: what each output that won its pool sends back to them.

    Rows are squares of 2 x 2 input pixels, for the outputs that see one of them are nearly the same for all four.
    """
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    across: tl.constexpr = (WIDTH + 1) // 2
    along: tl.constexpr = (HEIGHT + 1) // 2
    row = m // across
    sample, y, x = (row // along).to(tl.int64), 2 * (row % along), 2 * (m % across)
    values = client * pooled_pixels * OUTPUTS
    kernels = weight + client * w_client + c[None, :]
    dot: tl.constexpr = "ieee" if PRECISION == "strict" else "tf32"
    window: tl.constexpr = KERNEL + 1
    first = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    second = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    third = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    fourth = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for tap in range(window * window):
        # The output pixel; the square's first pixel is seen through kernel position (KERNEL - 1 - tap), and so on.
        tap_down, tap_right = tap // window, tap % window
        down, right = y + PADDING - KERNEL + 1 + tap_down, x + PADDING - KERNEL + 1 + tap_right
        seen = (m < quads) & (down >= 0) & (down < 2 * POOLED_HEIGHT) & (right >= 0) & (right < 2 * POOLED_WIDTH)
        pooled = tl.where(seen, ((sample * POOLED_HEIGHT + down // 2) * POOLED_WIDTH + right // 2) * OUTPUTS, 0)
        corner = (down % 2) * 2 + right % 2
        through = (KERNEL - 1 - tap_down) * KERNEL + KERNEL - 1 - tap_right
        upper, lower = tap_down < KERNEL, tap_down > 0
        left, right_of = tap_right < KERNEL, tap_right > 0
        for start in range(0, OUTPUTS, BLOCK_K):
            o = start + tl.arange(0, BLOCK_K)
            inside = seen[:, None] & (o[None, :] < OUTPUTS)
            g = tl.load(grad + values + pooled[:, None] + o[None, :], inside, 0.0)
            which = tl.load(winner + values + pooled[:, None] + o[None, :], inside, 0)
            g = tl.where(which == corner[:, None], g, 0.0)
            real = (o[:, None] < OUTPUTS) & (c[None, :] < CHANNELS)
            at = kernels + (through * OUTPUTS + o[:, None]) * CHANNELS
            w0 = tl.load(at, real & upper & left, 0.0)
            w1 = tl.load(at + OUTPUTS * CHANNELS, real & upper & right_of, 0.0)
            w2 = tl.load(at + KERNEL * OUTPUTS * CHANNELS, real & lower & left, 0.0)
            w3 = tl.load(at + (KERNEL + 1) * OUTPUTS * CHANNELS, real & lower & right_of, 0.0)
            if PRECISION == "bf16":
                g, w0, w1 = g.to(tl.bfloat16), w0.to(tl.bfloat16), w1.to(tl.bfloat16)
                w2, w3 = w2.to(tl.bfloat16), w3.to(tl.bfloat16)
            first = tl.dot(g, w0, first, input_precision=dot)
            second = tl.dot(g, w1, second, input_precision=dot)
            third = tl.dot(g, w2, third, input_precision=dot)
            fourth = tl.dot(g, w3, fourth, input_precision=dot)
    place = by_x + (client * pixels + ((sample * HEIGHT + y) * WIDTH + x)[:, None]) * CHANNELS + c[None, :]
    written = (m[:, None] < quads) & (c[None, :] < CHANNELS)
    upper, left = (y + 1 < HEIGHT)[:, None], (x + 1 < WIDTH)[:, None]
    tl.store(place, first, written)
    tl.store(place + CHANNELS, second, written & left)
    tl.store(place + WIDTH * CHANNELS, third, written & upper)
    tl.store(place + (WIDTH + 1) * CHANNELS, fourth, written & upper & left)


def _tile(size: int, most: int) -> int:
    """Return the edge of a tile: a power of two from 16 on, as tensor cores want it."""
    return min(most, max(16, 1 << (size - 1).bit_length()))


def _tiles(by_channels: dict[int, Tiles], channels: int) -> Tiles:
    """Return the tiles for a block with so many input channels."""
    return by_channels[max(least for least in by_channels if least <= channels)]


def _client_stride(stacked: Tensor) -> int:
    """Return how far clients lie apart; 0 if there is one for all."""
    return stacked.stride(0) if stacked.shape[0] > 1 else 0


def lay_out(x: Tensor, padding: int) -> Tensor:
    """Return `[clients, samples, height, width, channels]`, padded with zeros around and up to full lanes."""
    missing = -x.shape[2] % LANES
    return functional.pad(x.permute(0, 1, 3, 4, 2), (0, missing, *[padding] * 4)).contiguous()


def forward(x: Tensor, weight: Tensor, bias: Tensor, block: Block) -> Pooled:
    """Compute the block; see `blocks.Kernels`."""
    clients = max(x.shape[0], weight.shape[0])
    laid = lay_out(x, block.padding)
    samples, height, width, channels = laid.shape[1:]
    outputs, kernel = weight.shape[1], weight.shape[-1]
    pooled_height, pooled_width = (height - kernel + 1) // 2, (width - kernel + 1) // 2
    rows = functional.pad(weight.permute(0, 3, 4, 2, 1), (0, 0, 0, channels - weight.shape[2])).contiguous()
    y = x.new_empty(clients, samples, pooled_height, pooled_width, outputs)
    winner = torch.empty_like(y, dtype=torch.uint8)
    pixels = samples * pooled_height * pooled_width
    tiling, tile_o = _tiles(CONVOLVE, channels), _tile(outputs, 64)
    grid = (triton.cdiv(pixels, tiling.rows), triton.cdiv(outputs, tile_o), clients)
    _convolve[grid](
        laid, rows, bias, y, winner, _client_stride(laid), _client_stride(rows), _client_stride(bias), pixels,
        block.slope, height, width, channels, kernel, pooled_height, pooled_width, outputs, block.precision,
        BLOCK_M=tiling.rows, BLOCK_K=tiling.terms, BLOCK_O=tile_o,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return Pooled(y, winner, laid)


def backward(grad: Tensor, weight: Tensor, pooled: Pooled, block: Block, *, wants_x: bool) -> Gradients:
    """Compute the gradients; see `blocks.Kernels`."""
    y, winner, laid = pooled
    grad = torch.ops.aten.leaky_relu_backward(grad.contiguous(), y, block.slope, True)
    by_weight, by_bias = _by_weight(grad, weight, pooled, block)
    return Gradients(_by_x(grad, weight, winner, laid, block) if wants_x else None, by_weight, by_bias)


def _by_weight(grad: Tensor, weight: Tensor, pooled: Pooled, block: Block) -> tuple[Tensor, Tensor]:
    _, winner, laid = pooled
    clients, samples, pooled_height, pooled_width, outputs = grad.shape
    height, width, channels = laid.shape[2:]
    real, kernel = weight.shape[2], weight.shape[-1]
    pixels = samples * pooled_height * pooled_width
    terms = (kernel + 1) ** 2 * channels
    tiling = _tiles(WEIGHT_GRADIENT, channels)
    tile_k, tile_o, tile_m = _tile(terms, tiling.terms), _tile(outputs, 64), tiling.rows
    tiles = triton.cdiv(terms, tile_k) * triton.cdiv(outputs, tile_o)
    splits = max(1, min(triton.cdiv(pixels, 8 * tile_m), PROGRAMS // (tiles * clients)))
    share = triton.cdiv(pixels, splits * tile_m) * tile_m
    splits = triton.cdiv(pixels, share)
    by_weight = grad.new_empty(splits * 4, clients, outputs, real, kernel, kernel)
    by_bias = grad.new_empty(splits, clients, outputs)
    _weight_gradient[(tiles, splits, clients)](
        laid, grad, winner, by_weight, by_bias, _client_stride(laid), clients, pixels, share,
        height, width, channels, real, kernel, pooled_height, pooled_width, outputs, block.precision,
        BLOCK_M=tile_m, BLOCK_K=tile_k, BLOCK_O=tile_o,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return by_weight.sum(0), by_bias[0] if splits == 1 else by_bias.sum(0)


def _by_x(grad: Tensor, weight: Tensor, winner: Tensor, laid: Tensor, block: Block) -> Tensor:
    clients, samples, pooled_height, pooled_width, outputs = grad.shape
    height, width = (edge - 2 * block.padding for edge in laid.shape[2:4])
    channels, kernel = weight.shape[2], weight.shape[-1]
    rows = weight.permute(0, 3, 4, 1, 2).contiguous()
    by_x = grad.new_empty(clients, samples, height, width, channels)
    quads = samples * ((height + 1) // 2) * ((width + 1) // 2)
    tiling = _tiles(INPUT_GRADIENT, channels)
    tile_c, tile_m, tile_k = _tile(channels, 64), tiling.rows, _tile(outputs, tiling.terms)
    grid = (triton.cdiv(quads, tile_m), triton.cdiv(channels, tile_c), clients)
    _input_gradient[grid](
        grad, winner, rows, by_x, _client_stride(rows), quads, samples * pooled_height * pooled_width,
        samples * height * width,
        height, width, channels, kernel, block.padding, pooled_height, pooled_width, outputs, block.precision,
        BLOCK_M=tile_m, BLOCK_K=tile_k, BLOCK_C=tile_c,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return by_x


@final
class TritonKernels(Kernels):
    """One launch for all clients."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, block: Block) -> Pooled:
        """Compute a block."""
        return forward(x, weight, bias, block)

    def backward(self, grad: Tensor, weight: Tensor, pooled: Pooled, block: Block, *, wants_x: bool) -> Gradients:
        """Compute the gradients."""
        return backward(grad, weight, pooled, block, wants_x=wants_x)
