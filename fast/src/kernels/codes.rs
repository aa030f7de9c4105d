//! Matrices of 8-bit (L) and 4-bit (M) codes, packed for integer sums: panels of 32 outputs, 4 inputs of an output side by
//! side (`[panel][input / 4][32][4]`), groups filled up with zero codes. 4-bit codes of two neighbouring quads share
//! bytes: the even quad in the low halves. Knows what a code stands for; nothing of activations.

use super::activations::MAX_GROUP;
use super::buffer::Buffer;
use super::hadamard::BLOCK;
use super::lanes::Bf16;
use super::pack::{PANEL, PackError, check};
use half::bf16;

/// One matrix of codes.
#[derive(Clone)]
pub(super) struct Codes {
    /// L: `[panel][quad][32][4]` signed. M: `[panel][quad / 2][32][4]`, two codes a byte.
    pub codes: Buffer<u8>,
    /// `[panel][group][32]`
    pub scales: Buffer<Bf16>,
    /// M: `[panel][group][32]`; L: empty, its zero is 0.
    pub zeros: Option<Buffer<i8>>,
    pub group: usize,
    inputs: usize,
}

impl Codes {
    /// L: a weight is `scale * code`. `codes: [outputs, inputs]`, `scales: [outputs, groups]`.
    pub fn eight(codes: &[i8], scales: &[bf16], (outputs, inputs): (usize, usize), group: usize) -> Result<Self, PackError> {
        check(codes.len(), outputs, inputs)?;
        let mut packed = Self::empty(scales, (outputs, inputs), group, false)?;
        let quads = packed.groups() * group / 4;
        let slots = packed.codes.as_mut_slice();
        for (row, codes) in codes.chunks_exact(inputs).enumerate() {
            let first = (row / PANEL * quads * PANEL + row % PANEL) * 4;
            for (quad, codes) in codes.chunks(4).enumerate() {
                let slot = &mut slots[first + quad * PANEL * 4..][..4];
                slot.iter_mut().zip(codes).for_each(|(slot, &code)| *slot = code as u8);
            }
        }
        Ok(packed)
    }

    /// M: a weight is `scale * (code - zero)`. `codes: [outputs, ceil(inputs / 2)]` bytes, the even input in the low half;
    /// `zeros: [outputs, ceil(groups / 2)]` packed alike.
    pub fn four(
        codes: &[u8],
        scales: &[bf16],
        zeros: &[u8],
        (outputs, inputs): (usize, usize),
        group: usize,
    ) -> Result<Self, PackError> {
        check(codes.len(), outputs, inputs.div_ceil(2))?;
        let mut packed = Self::empty(scales, (outputs, inputs), group, true)?;
        let groups = packed.groups();
        check(zeros.len(), outputs, groups.div_ceil(2))?;
        let half = |bytes: &[u8], i: usize| bytes[i / 2] >> (4 * (i % 2)) & 15;
        let octets = groups * group / 8;
        let slots = packed.codes.as_mut_slice();
        for (row, codes) in codes.chunks_exact(inputs.div_ceil(2)).enumerate() {
            let first = (row / PANEL * octets * PANEL + row % PANEL) * 4;
            for k in 0..inputs {
                slots[first + k / 8 * PANEL * 4 + k % 4] |= half(codes, k) << (4 * (k / 4 % 2));
            }
        }
        let mut wide = Buffer::zeroed(outputs.div_ceil(PANEL) * groups * PANEL);
        for (row, zeros) in zeros.chunks_exact(groups.div_ceil(2)).enumerate() {
            for g in 0..groups {
                wide.as_mut_slice()[(row / PANEL * groups + g) * PANEL + row % PANEL] = half(zeros, g) as i8;
            }
        }
        packed.zeros = Some(wide);
        Ok(packed)
    }

    fn empty(scales: &[bf16], (outputs, inputs): (usize, usize), group: usize, four: bool) -> Result<Self, PackError> {
        if group == 0 || group > MAX_GROUP || !group.is_multiple_of(BLOCK) {
            return Err(PackError::CodeGroup { found: group });
        }
        let groups = inputs.div_ceil(group);
        check(scales.len(), outputs, groups)?;
        let panels = outputs.div_ceil(PANEL);
        let mut packed = Buffer::zeroed(panels * groups * PANEL);
        for (row, scales) in scales.chunks_exact(groups).enumerate() {
            for (g, scale) in scales.iter().enumerate() {
                packed.as_mut_slice()[(row / PANEL * groups + g) * PANEL + row % PANEL] = Bf16(scale.to_bits());
            }
        }
        let bytes = panels * PANEL * groups * group / if four { 2 } else { 1 };
        Ok(Self { codes: Buffer::zeroed(bytes), scales: packed, zeros: None, group, inputs })
    }

    /// Groups of a row.
    pub fn groups(&self) -> usize {
        self.inputs.div_ceil(self.group)
    }

    /// Bytes of codes of one panel.
    pub fn panel_bytes(&self) -> usize {
        self.groups() * self.group * PANEL / if self.zeros.is_some() { 2 } else { 1 }
    }

    /// Bytes that one pass reads, padding included.
    pub fn bytes(&self) -> usize {
        let zeros = self.zeros.as_ref().map_or(0, |z| z.as_slice().len());
        self.codes.as_slice().len() + 2 * self.scales.as_slice().len() + zeros
    }

    /// The weights of output `row`, in the basis of the codes.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let (panel, lane) = (row / PANEL, row % PANEL);
        let codes = &self.codes.as_slice()[panel * self.panel_bytes()..][..self.panel_bytes()];
        for (g, out) in out.chunks_mut(self.group).enumerate() {
            let at = (panel * self.groups() + g) * PANEL + lane;
            let scale = bf16::from_bits(self.scales.as_slice()[at].0).to_f32();
            let zero = self.zeros.as_ref().map(|zeros| zeros.as_slice()[at]);
            for (quad, out) in out.chunks_mut(4).enumerate() {
                let quad = g * self.group / 4 + quad;
                let line = if zero.is_some() { quad / 2 } else { quad };
                let bytes = &codes[(line * PANEL + lane) * 4..][..4];
                for (x, &byte) in out.iter_mut().zip(bytes) {
                    *x = scale
                        * zero.map_or(f32::from(byte as i8), |zero| f32::from((byte >> (4 * (quad % 2)) & 15) as i8 - zero));
                }
            }
        }
    }

    /// The chosen outputs as a matrix of their own, code for code.
    pub fn select(&self, rows: &[usize]) -> Self {
        let panels = rows.len().div_ceil(PANEL);
        let (groups, lines) = (self.groups(), self.panel_bytes() / (PANEL * 4));
        let mut chosen = Self {
            codes: Buffer::zeroed(panels * self.panel_bytes()),
            scales: Buffer::zeroed(panels * groups * PANEL),
            zeros: self.zeros.as_ref().map(|_| Buffer::zeroed(panels * groups * PANEL)),
            ..*self
        };
        let place = |row: usize, line: usize, lines: usize| (row / PANEL * lines + line) * PANEL + row % PANEL;
        for (to, &from) in rows.iter().enumerate() {
            for line in 0..lines {
                let (to, from) = (4 * place(to, line, lines), 4 * place(from, line, lines));
                chosen.codes.as_mut_slice()[to..to + 4].copy_from_slice(&self.codes.as_slice()[from..from + 4]);
            }
            for g in 0..groups {
                let (to, from) = (place(to, g, groups), place(from, g, groups));
                chosen.scales.as_mut_slice()[to] = self.scales.as_slice()[from];
                if let (Some(chosen), Some(zeros)) = (&mut chosen.zeros, &self.zeros) {
                    chosen.as_mut_slice()[to] = zeros.as_slice()[from];
                }
            }
        }
        chosen
    }
}
