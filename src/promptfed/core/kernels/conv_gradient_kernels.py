"""Triton kernels of `convolved.py`: the gradients of convolution, ReLU and pooling."""

import triton
import triton.language as tl
from torch import Tensor

from promptfed.core.kernels.conv_kernels import CLOSED, block, pixel, precision
from promptfed.core.kernels.tiles import Cut


@triton.jit
def _pulled(
    grad,
    code,
    out,
    each,
    of_client,
    of_image,
    of_channel,
    of_row,
    of_column,
    high,
    wide,
    height,
    width,
    CHANNELS: tl.constexpr,
    POOL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    client = tl.program_id(1).to(tl.int64)
    row, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    windows = tl.cdiv(width, POOL)  # the last of a row may be one that pooling leaves out
    image, down, across = pixel(row, windows, tl.cdiv(height, POOL) * windows)
    real = (image < each) & (channel < CHANNELS)
    keep = real & (down < high) & (across < wide)
    pull = grad + client * of_client + image * of_image + channel * of_channel + down * of_row + across * of_column
    pull = tl.load(pull, mask=keep, other=0.0)
    image += client * each
    which = tl.load(code + ((image * high + down) * wide + across) * CHANNELS + channel, mask=keep, other=CLOSED)
    for number in tl.static_range(POOL * POOL):
        y, x = down * POOL + number // POOL, across * POOL + number % POOL
        place = ((image * height + y) * width + x) * CHANNELS + channel
        tl.store(out + place, tl.where(which == number, pull, 0.0), mask=real & (y < height) & (x < width))


@triton.jit
def _to_filters(
    x,
    grad,
    code,
    shares,
    each,
    of_client,
    of_image,
    of_channel,
    of_row,
    of_column,
    pull_client,
    pull_image,
    pull_channel,
    pull_row,
    pull_column,
    high,
    wide,
    height,
    width,
    outputs,
    portion,
    CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr,
    POOL: tl.constexpr,
    ROWS: tl.constexpr,
    NUMBERS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add up, over a portion of a client's pixels, what each number of a patch gives to the gradient of its filters."""
    client, count = tl.program_id(2).to(tl.int64), KERNEL * KERNEL * CHANNELS
    tiles = tl.cdiv(outputs, OUTPUTS)
    number = tl.program_id(0) // tiles * NUMBERS + tl.arange(0, NUMBERS)
    output = tl.program_id(0) % tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    used, within = (output < outputs)[None, :], number // CHANNELS
    offset = number % CHANNELS * of_channel + within // KERNEL * of_row + within % KERNEL * of_column
    begin = tl.program_id(1) * portion
    end = tl.minimum(begin + portion, each * height * width)
    total, gathered = tl.zeros([NUMBERS, OUTPUTS], tl.float32), tl.zeros([OUTPUTS], tl.float32)
    x += client * of_client
    grad += client * pull_client
    for at in range(begin, end, ROWS):
        row = at + tl.arange(0, ROWS)
        image, down, across = pixel(row, width, height * width)
        start = image * of_image + down * of_row + across * of_column
        keep = (row < end)[:, None] & (number < count)[None, :]
        a = tl.load(x + start[:, None] + offset[None, :], mask=keep, other=0.0)
        keep = ((row < end) & (down // POOL < high) & (across // POOL < wide))[:, None] & used
        place = image * pull_image + down // POOL * pull_row + across // POOL * pull_column
        pull = tl.load(grad + place[:, None] + output[None, :] * pull_channel, mask=keep, other=0.0)
        place = ((client * each + image) * high + down // POOL) * wide + across // POOL
        which = tl.load(code + place[:, None] * outputs + output[None, :], mask=keep, other=CLOSED)
        pull = tl.where(which == (down % POOL * POOL + across % POOL)[:, None], pull, 0.0)
        total = tl.dot(tl.trans(a), pull, total, input_precision=PRECISION)
        gathered += tl.sum(pull, 0)
    shares += (client * tl.num_programs(1) + tl.program_id(1)) * (count + 1) * outputs
    tl.store(shares + number[:, None] * outputs + output[None, :], total, mask=(number < count)[:, None] & used)
    if tl.program_id(0) // tiles == 0:
        tl.store(shares + count * outputs + output, gathered, mask=output < outputs)


@triton.jit
def _added(
    shares, to_weight, to_bias, splits, outputs, CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr
):
    """Add up the shares of all portions, and turn filters [k·k·I, O] into weights [O, I, k·k]."""
    client, count = tl.program_id(1).to(tl.int64), TAPS * CHANNELS
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bias = at >= outputs * count
    rest = at % count
    number = tl.where(bias, count, rest % TAPS * CHANNELS + rest // TAPS)
    output = tl.where(bias, at - outputs * count, at // count)
    keep = at < outputs * (count + 1)
    place = shares + client * splits * (count + 1) * outputs + number * outputs + output
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        total += tl.load(place + split * (count + 1) * outputs, mask=keep, other=0.0)
    tl.store(to_weight + client * outputs * count + at, total, mask=keep & (at < outputs * count))
    tl.store(to_bias + client * outputs + output, total, mask=keep & bias)


@triton.jit
def _to_images(
    grad,
    filters,
    out,
    each,
    height,
    width,
    high,
    wide,
    inputs,
    OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr,
    ROWS: tl.constexpr,
    NUMBERS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of images [height, width], given that of the convolution [high, wide]."""
    client, pieces = tl.program_id(1).to(tl.int64), tl.cdiv(OUTPUTS, NUMBERS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    image, down, across = pixel(row, width, height * width)
    real, used = row < each * height * width, (channel < inputs)[None, :]
    grad += client * each * high * wide * OUTPUTS
    filters += client * inputs * KERNEL * KERNEL * OUTPUTS
    start = (image * high + down) * wide + across
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    for step in range(KERNEL * KERNEL * pieces):
        tap, output = step // pieces, step % pieces * NUMBERS + tl.arange(0, NUMBERS)
        y, x = down - tap // KERNEL, across - tap % KERNEL
        inside = real & (y >= 0) & (y < high) & (x >= 0) & (x < wide)
        place = (start - tap // KERNEL * wide - tap % KERNEL) * OUTPUTS
        a = tl.load(
            grad + place[:, None] + output[None, :], mask=inside[:, None] & (output < OUTPUTS)[None, :], other=0.0
        )
        place = (channel * KERNEL * KERNEL + tap) * OUTPUTS
        b = tl.load(filters + place[None, :] + output[:, None], mask=used & (output < OUTPUTS)[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    place = (client * each * height * width + row[:, None]) * inputs + channel[None, :]
    tl.store(out + place, total, mask=real[:, None] & used)


@triton.jit
def _along_rows(
    grad,
    filters,
    out,
    each,
    height,
    width,
    high,
    wide,
    inputs,
    OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr,
    ROWS: tl.constexpr,
    NUMBERS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The same as `_to_images`, all columns of a filter at a time: what each gives is moved along the row, then added.

    A row of an image takes WIDTH rows of the product.
    """
    client, pieces = tl.program_id(1).to(tl.int64), tl.cdiv(OUTPUTS, NUMBERS)
    row, side = tl.arange(0, ROWS), tl.arange(0, COLUMNS * CHANNELS)
    column, channel, across = side // CHANNELS, side % CHANNELS, row % WIDTH
    line = tl.program_id(0) * (ROWS // WIDTH) + row // WIDTH
    image, down = line // height, line % height
    real, used = (image < each) & (across < wide), ((column < KERNEL) & (channel < inputs))[None, :]
    grad += client * each * high * wide * OUTPUTS
    filters += client * inputs * KERNEL * KERNEL * OUTPUTS
    total = tl.zeros([ROWS, COLUMNS * CHANNELS], tl.float32)
    for step in range(KERNEL * pieces):
        tap, output = step // pieces, step % pieces * NUMBERS + tl.arange(0, NUMBERS)
        y = down - tap
        inside, some = (real & (y >= 0) & (y < high))[:, None], output < OUTPUTS
        place = ((image * high + y) * wide + across) * OUTPUTS
        a = tl.load(grad + place[:, None] + output[None, :], mask=inside & some[None, :], other=0.0)
        place = ((column * inputs + channel) * KERNEL + tap) * OUTPUTS
        b = tl.load(filters + place[None, :] + output[:, None], mask=used & some[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    there = across[:, None] >= column[None, :]
    moved = tl.gather(total, tl.where(there, row[:, None] - column[None, :], row[:, None]), 0)
    moved = tl.sum(tl.reshape(tl.where(there, moved, 0.0), [ROWS, COLUMNS, CHANNELS]), 1)
    channel = tl.arange(0, CHANNELS)[None, :]
    place = ((client * each * height + line) * width + across)[:, None] * inputs + channel
    keep = ((image < each) & (across < width))[:, None] & (channel < inputs)
    tl.store(out + place, moved, mask=keep)


def pulled(grad: Tensor, code: Tensor, size: tuple[int, int], pool: int, rows: int = 32, warps: int = 4) -> Tensor:
    """Return the gradient of a convolution [C, B, H, W, O], given that behind pooling and ReLU [C, B, O, H', W']."""
    clients, each, high, wide, outputs = code.shape
    out = grad.new_empty(clients, each, *size, outputs)
    windows = triton.cdiv(size[0], pool) * triton.cdiv(size[1], pool)
    _pulled[triton.cdiv(each * windows, rows), clients](
        *(grad, code, out, each, *grad.stride(), high, wide, *size),
        CHANNELS=outputs,
        POOL=pool,
        ROWS=rows,
        BLOCK=triton.next_power_of_2(outputs),
        num_warps=warps,
    )
    return out


def to_weights(
    x: Tensor, grad: Tensor, code: Tensor, kernel: int, pool: int, tile: Cut, portion: int, most: int = 64
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weights [C, O, I, k, k] and bias [C, O], given that behind pooling [C, B, O, H', W']."""
    (clients, each, channels), (height, width) = x.shape[:3], (side - kernel + 1 for side in x.shape[3:])
    high, wide, outputs = code.shape[2:]
    count, splits = kernel * kernel * channels, triton.cdiv(each * height * width, portion)
    most = block(outputs, most)
    shares = x.new_empty(clients, splits, count + 1, outputs)
    _to_filters[triton.cdiv(count, tile.numbers) * triton.cdiv(outputs, most), splits, clients](
        *(x, grad, code, shares, each, *x.stride(), *grad.stride()),
        *(high, wide, height, width, outputs, portion),
        CHANNELS=channels,
        KERNEL=kernel,
        POOL=pool,
        ROWS=tile.rows,
        NUMBERS=tile.numbers,
        OUTPUTS=most,
        PRECISION=precision(),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    to_weight, to_bias = x.new_empty(clients, outputs, channels, kernel, kernel), x.new_empty(clients, outputs)
    _added[triton.cdiv(outputs * (count + 1), 256), clients](
        *(shares, to_weight, to_bias, splits, outputs), CHANNELS=channels, TAPS=kernel * kernel, BLOCK=256, num_warps=4
    )
    return to_weight, to_bias


def to_images(grad: Tensor, filters: Tensor, size: tuple[int, int], tile: Cut, most: int = 64) -> Tensor:
    """Return the gradient of images [C, B, H, W, I], given that of their convolution and filters [C, I, k, k, O]."""
    (clients, each, high, wide, outputs), (inputs, kernel) = grad.shape, filters.shape[1:3]
    out = grad.new_empty(clients, each, *size, inputs)
    most = block(inputs, most)
    _to_images[triton.cdiv(each * size[0] * size[1], tile.rows), clients, triton.cdiv(inputs, most)](
        *(grad, filters, out, each, *size, high, wide, inputs),
        OUTPUTS=outputs,
        KERNEL=kernel,
        ROWS=tile.rows,
        NUMBERS=tile.numbers,
        CHANNELS=most,
        PRECISION=precision(),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


def along_rows(grad: Tensor, filters: Tensor, size: tuple[int, int], tile: Cut) -> Tensor:
    """Return what `to_images` does, of filters with columns first [C, k, I, k, O]: for narrow images."""
    (clients, each, high, wide, outputs), (kernel, inputs) = grad.shape, filters.shape[1:3]
    out = grad.new_empty(clients, each, *size, inputs)
    width = triton.next_power_of_2(size[1])
    rows = max(tile.rows, width)
    _along_rows[triton.cdiv(each * size[0], rows // width), clients](
        *(grad, filters, out, each, *size, high, wide, inputs),
        OUTPUTS=outputs,
        KERNEL=kernel,
        ROWS=rows,
        NUMBERS=tile.numbers,
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(kernel),
        CHANNELS=triton.next_power_of_2(inputs),
        PRECISION=precision(),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out
