# SPDX-License-Identifier: GPL-2.0-only
# Not tried with Nix: docs/packages.md.
{
  description = "Baton, a sched_ext scheduler for KVM hosts with more vCPUs than CPUs";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      system = "x86_64-linux";
      pkgs = nixpkgs.legacyPackages.${system};
    in
    {
      packages.${system}.default = pkgs.rustPlatform.buildRustPackage {
        pname = "scx-baton";
        version = "0.1.0";
        src = self;
        cargoLock.lockFile = ./Cargo.lock;

        # bindgenHook: the build script of scx_baton reads BPF headers with libclang.
        nativeBuildInputs = [
          pkgs.llvmPackages.clang
          pkgs.pkg-config
          pkgs.rustPlatform.bindgenHook
        ];
        buildInputs = [ pkgs.elfutils pkgs.zlib ];
        # Options that clang does not have for BPF.
        hardeningDisable = [ "stackprotector" "zerocallusedregs" ];
        postPatch = "patchShebangs tools packaging";

        # Tests need a whole machine; the pages come from one of them.
        doCheck = false;
        buildPhase = ''
          runHook preBuild
          cargo build --release --offline --workspace
          BATON_MANUALS=$PWD/target/release/manuals cargo test --release --offline --workspace \
            --bin baton --bin scx_baton has_manuals
          runHook postBuild
        '';
        installPhase = ''
          runHook preInstall
          PREFIX=$out SYSCONFDIR=$out/etc packaging/install target
          runHook postInstall
        '';

        meta = {
          description = "Scheduler for KVM hosts with more vCPUs than CPUs";
          license = pkgs.lib.licenses.gpl2Only;
          platforms = [ "x86_64-linux" ];
          mainProgram = "scx_baton";
        };
      };
    };
}
